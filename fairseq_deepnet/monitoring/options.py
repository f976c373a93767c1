"""The options of monitoring: they belong to our models' options, as a plugin can add no others."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigurationError
from .quantities import EVERYTHING, parse_quantities


@dataclass(frozen=True)
class MonitorSettings:
    """What to measure, and how often.

    Arguments:
        interval: updates between two records
        quantities: names in monitoring.quantities
    """

    interval: int
    quantities: tuple[str, ...]


def add_monitor_arguments(parser: ArgumentParser) -> None:
    """--monitor-interval and --monitor."""
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
        help=f"what to measure, separated by commas (default {EVERYTHING}); docs/monitoring.md has"
        " the table",
    )


def monitor_settings(args: Any) -> MonitorSettings | None:
    """What a model's arguments ask for; None where nothing is to be measured.

    Raises:
        ConfigurationError: for an interval below 0 or an unknown quantity.
    """
    interval = getattr(args, "monitor_interval", None) or 0
    if interval < 0:
        raise ConfigurationError(f"--monitor-interval {interval}: give updates, or 0 for never")
    try:
        quantities = parse_quantities(getattr(args, "monitor", None) or EVERYTHING)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    return MonitorSettings(interval, quantities) if interval else None
