"""Keep in checkpoints what half precision needs to resume exactly: fp32 weights, scaler's counts.

Under --fp16 and --bf16 the weights that are trained are fp32 copies. fairseq saves the model's,
which are rounded, and begins new copies from them at every resume. Here the copies go into the
optimiser's state, beside Adam's moments, as `fp32_params`: 4 bytes a parameter, on the 12 that
fairseq writes. So do the counts by which the loss scale of fp16 grows. Stock fairseq reads neither
key, and loads such a checkpoint as its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

import fairseq.distributed.utils
import torch
from fairseq.optim.fp16_optimizer import FP16Optimizer, MemoryEfficientFP16Optimizer
from torch import Tensor

from ..errors import ConfigurationError
from ..wrapping import wrap

logger = logging.getLogger(__name__)

WEIGHTS: Final = "fp32_params"
"""Key of the fp32 weights: a list of tensors, one a parameter, or one row of all parameters."""
SCALER: Final = "loss_scaler"
"""Key of the loss scale's counts; the scale itself stands in fairseq's `loss_scale`."""
_COUNTS: Final = ("_iter", "_last_overflow_iter", "_last_rescale_iter", "_overflows_since_rescale")


def apply() -> None:
    """Let fairseq's optimisers of half precision save and load them."""
    for kind in (FP16Optimizer, MemoryEfficientFP16Optimizer):
        _extend(kind)


def _extend(kind: Any) -> None:
    copies = kind is FP16Optimizer  # the other one trains the rounded weights themselves

    @wrap(kind, "state_dict")
    def state_dict(save: Any, self: Any) -> dict[str, Any]:
        state: dict[str, Any] = save(self)
        if self.scaler is not None:
            state[SCALER] = {name: getattr(self.scaler, name) for name in _COUNTS}
        if copies:
            state[WEIGHTS] = [held.detach() for held in _held(self)]
        return state

    @wrap(kind, "load_state_dict")
    def load_state_dict(
        load: Any, self: Any, state_dict: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        saved = state_dict.get(WEIGHTS) if copies else None
        if saved is not None:
            _refuse_others(saved, _held(self))
        load(self, state_dict, *args, **kwargs)
        if self.scaler is not None:
            counts = state_dict.get(SCALER, {}).items()
            vars(self.scaler).update({name: int(n) for name, n in counts if name in _COUNTS})
        if saved is not None:
            _take(self, saved)
        elif copies:
            _warn("the checkpoint holds no fp32 weights: they are taken from its rounded ones")


def _held(optimizer: Any) -> Sequence[Tensor]:
    """Return an FP16Optimizer's fp32 weights; it keeps rows by the number of their device."""
    held = optimizer.fp32_params
    return list(held.values()) if isinstance(held, dict) else held


def _refuse_others(saved: Sequence[Tensor], held: Sequence[Tensor]) -> None:
    """Raise ConfigurationError for weights of another set of parameters: so are the moments."""
    if [weights.shape for weights in saved] == [weights.shape for weights in held]:
        return
    found, wanted = (
        f"{len(those)} of {sum(weights.numel() for weights in those):,} numbers"
        for those in (saved, held)
    )
    raise ConfigurationError(
        f"the checkpoint's optimiser state is of other parameters: fp32 tensors {found}, here"
        f" {wanted}; train the same parameters with the same --fp16, --bf16 and"
        " --fp16-no-flatten-grads as before, or give --reset-optimizer"
    )


@torch.no_grad()
def _take(optimizer: Any, saved: Sequence[Tensor]) -> None:
    """Go on with the saved weights, as far as the model's are these, rounded.

    Where they are not, somebody has changed the checkpoint's model, which they would undo.
    """
    changed = 0
    for p, mine, weights in _by_parameter(optimizer, _held(optimizer), saved):
        # the copy of a parameter that was frozen meanwhile has gone its own way
        fits = not p.requires_grad or _is_rounded(p, weights)
        mine.copy_(weights if fits else p)
        changed += not fits
    optimizer._sync_fp32_params_to_fp16()  # where the checkpoint has the other half precision
    if changed:
        _warn(
            f"{changed} of the checkpoint's fp32 weights do not round to its model's, which were"
            " changed since: these are taken from the model"
        )


def _by_parameter(optimizer: Any, *lists: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Yield each parameter of the model with its part of every list of fp32 weights."""
    params = optimizer.fp16_params
    if not isinstance(optimizer.fp32_params, dict):
        yield from zip(params, *lists, strict=True)
        return
    for device, *rows in zip(optimizer.fp32_params, *lists, strict=True):
        here = [p for p in params if p.device.index == device]
        parts = [row.split([p.numel() for p in here]) for row in rows]
        for p, *own in zip(here, *parts, strict=True):
            yield p, *(part.view_as(p) for part in own)


def _is_rounded(p: Tensor, weights: Tensor) -> bool:
    """Return True if p holds these weights, rounded to its type or to a half precision before."""
    there = weights.to(p.device)
    kinds = (p.dtype, torch.bfloat16, torch.float16)
    return any(torch.equal(there.to(kind).to(p.dtype), p) for kind in kinds)


def _warn(what: str) -> None:
    if fairseq.distributed.utils.get_global_rank() == 0:
        logger.warning("%s; this training is not exactly the one that was interrupted", what)
