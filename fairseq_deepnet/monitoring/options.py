"""Options of monitoring. They belong to our models, because a plugin cannot add other options."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigurationError
from ..schemes import scheme_class
from .instruments import absent
from .quantities import EVERYTHING, parse_quantities


@dataclass(frozen=True)
class MonitorSettings:
    """Settings: what to measure, and how often."""

    interval: int  # updates between two records
    quantities: tuple[str, ...]  # names in monitoring.quantities


def add_monitor_arguments(parser: ArgumentParser) -> None:
    """Add --monitor-interval and --monitor."""
    parser.add_argument(
        "--monitor-interval",
        type=int,
        metavar="N",
        help="measure gradients, activations and model updates at every N-th update, into"
        " monitor.jsonl and TensorBoard (0, the default: never); changes no number of the training",
    )
    parser.add_argument(
        "--monitor",
        metavar="QUANTITIES",
        help=f"what to measure, separated by commas (default {EVERYTHING}); the table is"
        " monitoring/quantities.md",
    )


def monitor_settings(args: Any) -> MonitorSettings | None:
    """Return the settings of a model's arguments; None if nothing is measured.

    Raises:
        ConfigurationError: for a negative interval, an unknown quantity, quantities without an
            interval, and quantities that the model does not have.
    """
    interval, wanted = getattr(args, "monitor_interval", None), getattr(args, "monitor", None)
    try:
        quantities = parse_quantities(EVERYTHING if wanted is None else wanted)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    if interval is None and wanted is not None:
        # an interval of 0 is no mistake: it turns off what a configuration file asks for
        raise ConfigurationError(
            f"--monitor {wanted} measures nothing without --monitor-interval; give the updates"
            " between two records, as in --monitor-interval 100, or leave out --monitor"
        )
    if interval is not None and interval < 0:
        raise ConfigurationError(f"--monitor-interval {interval}: give updates, or 0 for never")
    scheme = scheme_class(args.residual_scheme, "--residual-scheme")
    lacking = absent(scheme, bool(getattr(args, "layernorm_embedding", False)))
    missing = [name for name in quantities if name in lacking]
    if missing and quantities != parse_quantities(EVERYTHING):  # of all, what there is
        raise ConfigurationError(
            f"--monitor: --residual-scheme {scheme.name} has no {', '.join(missing)}"
            f"; leave {'it' if len(missing) == 1 else 'them'} out, or give --monitor {EVERYTHING}"
            " for all that there is"
        )
    return MonitorSettings(interval, quantities) if interval else None
