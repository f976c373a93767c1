"""Options of the divergence watch."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ..errors import ConfigurationError
from ..signals import ATTEMPT
from .causes import Circumstances

DEFAULT_FALLBACKS: Final = "lr*0.5 warmup-updates+1000, lr*0.5, update-freq*2"


class Policy(StrEnum):
    """Reaction to a divergence."""

    OFF = "off"
    WARN = "warn"
    STOP = "stop"
    FALLBACK = "fallback"


@dataclass(frozen=True)
class WatchSettings:
    """Settings of the watch."""

    policy: Policy  # --on-divergence
    attempt: int  # fallbacks taken before this start
    circumstances: Circumstances  # what bears on how a training diverges

    @property
    def stops(self) -> bool:
        """True if a divergence ends the run."""
        return self.policy is Policy.STOP


def add_watch_arguments(parser: ArgumentParser) -> None:
    """Add --on-divergence, and --fallbacks for `deepnet train`."""
    parser.add_argument(
        "--on-divergence",
        metavar="{off,warn,stop,fallback}",
        help="what to do when losses or gradients are not finite, the loss spikes or stalls at the"
        " unigram level, gradients vanish below a depth or the loss scale collapses: a warning with"
        " layers and likely cause (warn, the default); end the training (stop); go back to the"
        " newest checkpoint from before and continue with --fallbacks (fallback: scripts/train.sh"
        " and deepnet train only, which start fairseq-train again)",
    )
    parser.add_argument(
        "--fallbacks",
        metavar="STEPS",
        help="for --on-divergence fallback: changes to take one after another, separated by commas;"
        f" each option=value, option*factor or option+number (default {DEFAULT_FALLBACKS!r})",
    )
    parser.add_argument(f"--{ATTEMPT}", type=int, default=0, help=SUPPRESS)


def settings(args: Any) -> WatchSettings:
    """Return the settings of parsed options.

    Raises:
        ConfigurationError: for an unknown policy, or options without an effect.
    """
    name = getattr(args, "on_divergence", None) or Policy.WARN.value
    if name not in list(Policy):
        raise ConfigurationError(f"--on-divergence {name} is unknown; choose {', '.join(Policy)}")
    policy = Policy(name)
    if getattr(args, "fallbacks", None) is not None and policy is not Policy.FALLBACK:
        raise ConfigurationError(
            f"--fallbacks means nothing with --on-divergence {name}; set --on-divergence fallback"
        )
    return WatchSettings(policy, getattr(args, "fallback_step", 0), Circumstances.of(args))
