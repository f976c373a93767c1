"""The options of the divergence watch; what they mean for a training that is about to start."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ..errors import ConfigurationError
from . import fallbacks, restart
from .causes import Circumstances

GOOD_INTERVAL: Final = 1000


class Policy(StrEnum):
    """What follows a divergence."""

    OFF = "off"
    WARN = "warn"
    STOP = "stop"
    FALLBACK = "fallback"


ACTING: Final = (Policy.STOP, Policy.FALLBACK)
"""Policies that end a training."""


@dataclass(frozen=True)
class WatchSettings:
    """What the options ask for.

    Arguments:
        policy: --on-divergence
        steps: --fallbacks
        good_interval: updates between two good states, 0 for none; only kept if a policy needs them
        step: fallbacks taken before this start
        present: every option as parsed
        circumstances: what of them bears on how a training diverges
    """

    policy: Policy
    steps: tuple[fallbacks.Step, ...]
    good_interval: int
    step: int
    present: Mapping[str, Any]
    circumstances: Circumstances

    @property
    def acts(self) -> bool:
        """Whether the training ends at a divergence."""
        return self.policy in ACTING


def add_watch_arguments(parser: ArgumentParser) -> None:
    """--on-divergence, --fallbacks, --good-interval."""
    parser.add_argument(
        "--on-divergence",
        metavar="{off,warn,stop,fallback}",
        help="what to do when losses or gradients are not finite, the loss spikes or stalls at the"
        " unigram level, gradients vanish below a depth or the loss scale collapses: a warning with"
        " layers and likely cause (warn, the default); end with a checkpoint of the last good state"
        " (stop); go on from it with --fallbacks (fallback)",
    )
    parser.add_argument(
        "--fallbacks",
        metavar="STEPS",
        help="for --on-divergence fallback: changes to take one after another, separated by commas;"
        f" each option=value, option*factor, option+number or fp32 (default {fallbacks.DEFAULT!r})",
    )
    parser.add_argument(
        "--good-interval",
        type=int,
        metavar="N",
        help="for --on-divergence stop and fallback: save a state to return to at every N-th"
        f" update, 0 for never (default {GOOD_INTERVAL})",
    )
    parser.add_argument(f"--{restart.STEP}", type=int, default=0, help=SUPPRESS)


def settings(args: Any) -> WatchSettings:
    """What parsed options ask for.

    Raises:
        ConfigurationError: for an unknown policy, or fallbacks that cannot be read or taken.
    """
    name = getattr(args, "on_divergence", None) or Policy.WARN.value
    if name not in list(Policy):
        raise ConfigurationError(f"--on-divergence {name} is unknown; choose {', '.join(Policy)}")
    policy = Policy(name)
    text = getattr(args, "fallbacks", None)
    if text is not None and policy is not Policy.FALLBACK:
        raise ConfigurationError(
            f"--fallbacks means nothing with --on-divergence {name}; set --on-divergence fallback"
        )
    interval = getattr(args, "good_interval", None)
    interval = GOOD_INTERVAL if interval is None else interval
    if interval < 0:
        raise ConfigurationError(f"--good-interval {interval}: give updates, or 0 for never")
    if getattr(args, "good_interval", None) is not None and policy not in ACTING:
        raise ConfigurationError(
            f"--good-interval means nothing with --on-divergence {name}; set --on-divergence stop"
            " or fallback"
        )
    present = vars(args)
    steps = _steps(text, present) if policy is Policy.FALLBACK else ()
    return WatchSettings(
        policy, steps, interval, present.get("fallback_step", 0), present, circumstances(args)
    )


def _steps(text: str | None, present: Mapping[str, Any]) -> tuple[fallbacks.Step, ...]:
    if text is not None:
        steps = fallbacks.parse(text)
        if "lr" in present:  # elsewhere, as when a model is loaded, there is no training to change
            fallbacks.check(steps, present)
        return steps
    steps = fallbacks.parse(fallbacks.DEFAULT)
    has = {fallbacks.FP32, *(name.replace("_", "-") for name in present)}
    known = [tuple(change for change in step if change.option in has) for step in steps]
    return tuple(step for step in known if step)


def circumstances(args: Any) -> Circumstances:
    """What of a training's options bears on how it diverges."""
    depths = {
        side: layers
        for side in ("encoder", "decoder")
        if isinstance(layers := getattr(args, f"{side}_layers", None), int)
    }
    rates = getattr(args, "lr", None) or [0.0]
    return Circumstances(
        scheme=args.residual_scheme,
        depths=depths or {"decoder": 0},
        lr=max(map(float, rates)) if isinstance(rates, list | tuple) else float(rates),
        warmup=int(getattr(args, "warmup_updates", 0) or 0),
        precision=next(
            (name for name in ("fp16", "amp", "bf16") if getattr(args, name, False)), "fp32"
        ),
        tokens=_tokens(args),
        clip=float(getattr(args, "clip_norm", 0.0) or 0.0),
    )


def _tokens(args: Any) -> int | None:
    most = getattr(args, "max_tokens", None)
    often = getattr(args, "update_freq", None) or [1]
    world = getattr(args, "distributed_world_size", 1) or 1
    return int(most) * int(max(often)) * world if most and isinstance(often, list) else None
