"""The options of the divergence watch; what they mean for a training that is about to start."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ..errors import ConfigurationError
from ..signals import ATTEMPT
from .causes import Circumstances

GOOD_INTERVAL: Final = 1000
DEFAULT_FALLBACKS: Final = "lr*0.5 warmup-updates+1000, lr*0.5, update-freq*2, fp32"


class Policy(StrEnum):
    """What follows a divergence."""

    OFF = "off"
    WARN = "warn"
    STOP = "stop"
    FALLBACK = "fallback"


@dataclass(frozen=True)
class WatchSettings:
    """What the options ask for."""

    policy: Policy  # --on-divergence
    # updates between two good states, 0 for none; only kept if the policy is stop
    good_interval: int
    attempt: int  # fallbacks taken before this start
    circumstances: Circumstances  # what bears on how a training diverges

    @property
    def stops(self) -> bool:
        """True if the training ends at a divergence."""
        return self.policy is Policy.STOP


def add_watch_arguments(parser: ArgumentParser) -> None:
    """Add --on-divergence and --good-interval; and --fallbacks, which is for `deepnet train`."""
    parser.add_argument(
        "--on-divergence",
        metavar="{off,warn,stop,fallback}",
        help="what to do when losses or gradients are not finite, the loss spikes or stalls at the"
        " unigram level, gradients vanish below a depth or the loss scale collapses: a warning with"
        " layers and likely cause (warn, the default); end with a checkpoint of the last good state"
        " (stop); go on from it with --fallbacks (fallback: scripts/train.sh and deepnet train"
        " only, which start fairseq-train again)",
    )
    parser.add_argument(
        "--fallbacks",
        metavar="STEPS",
        help="for --on-divergence fallback: changes to take one after another, separated by commas;"
        f" each option=value, option*factor, option+number or fp32 (default {DEFAULT_FALLBACKS!r})",
    )
    parser.add_argument(
        "--good-interval",
        type=int,
        metavar="N",
        help="for --on-divergence stop and fallback: save a state to return to at every N-th"
        f" update, 0 for never (default {GOOD_INTERVAL})",
    )
    parser.add_argument(f"--{ATTEMPT}", type=int, default=0, help=SUPPRESS)


def settings(args: Any) -> WatchSettings:
    """Return what parsed options ask for.

    Raises:
        ConfigurationError: for an unknown policy, or options that mean nothing with it.
    """
    name = getattr(args, "on_divergence", None) or Policy.WARN.value
    if name not in list(Policy):
        raise ConfigurationError(f"--on-divergence {name} is unknown; choose {', '.join(Policy)}")
    policy, interval = Policy(name), getattr(args, "good_interval", None)
    if getattr(args, "fallbacks", None) is not None and policy is not Policy.FALLBACK:
        raise ConfigurationError(
            f"--fallbacks means nothing with --on-divergence {name}; set --on-divergence fallback"
        )
    if interval is not None and policy not in (Policy.STOP, Policy.FALLBACK):
        raise ConfigurationError(
            f"--good-interval means nothing with --on-divergence {name}; set --on-divergence stop"
            " or fallback"
        )
    interval = GOOD_INTERVAL if interval is None else interval
    if interval < 0:
        raise ConfigurationError(f"--good-interval {interval}: give updates, or 0 for never")
    return WatchSettings(
        policy, interval, getattr(args, "fallback_step", 0), Circumstances.of(args)
    )
