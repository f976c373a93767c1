"""Dropout that does not draw one random number an element on the CPU.

torch's CPU generator spends more on a Bernoulli draw than a narrow layer on its matrix products:
at width 64, drawing masks is a tenth of a training step. Here each 64-bit word of the generator
decides about four elements, 16 bits each, and a mask of one byte an element is kept instead of
four.
"""

from typing import Any

import torch
import torch.nn.functional as F
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor
from torch.autograd.function import once_differentiable

LEVELS = 1 << 16  # probabilities are multiples of 1 / LEVELS
ELEMENTS_A_WORD = 4  # elements that one 64-bit word decides about


class Dropout(FairseqDropout):
    """x / (1 - p) where an element is kept, with probability 1 - p, else 0; as fairseq's, faster.

    On the CPU p is rounded to a multiple of 2^-16, and the expectation of the output stays x.
    --retain-dropout works as in fairseq.
    """

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """x of any shape; `inplace` is fairseq's, and not used."""
        if self.p == 0 or not (self.training or self.apply_during_inference):
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return F.dropout(x, self.p)
        dropped: Tensor = _WordwiseDropout.apply(x, self.p)  # type: ignore[no-untyped-call]
        return dropped


class _WordwiseDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        keep = round((1 - p) * LEVELS)
        mask = kept(x, keep)
        ctx.save_for_backward(mask)
        ctx.scale = LEVELS / keep if keep else 0.0
        return mask.to(x.dtype).mul_(x).mul_(ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return mask.to(gradient.dtype).mul_(gradient).mul_(ctx.scale), None


def kept(like: Tensor, keep: int) -> Tensor:
    """A mask shaped like a tensor, 1 with probability keep / LEVELS, else 0; one byte an element.

    It is no boolean tensor, because torch's CPU kernels convert those several times slower.
    """
    if keep == LEVELS:
        return torch.ones_like(like, dtype=torch.uint8)
    words = torch.randint(-(2**63), 2**63 - 1, (-(-like.numel() // ELEMENTS_A_WORD),))
    bits = words.view(torch.int16)[: like.numel()]
    return bits.lt_(keep - LEVELS // 2).to(torch.uint8).view(like.shape)
