"""Dropout that does not draw one random number an element on the CPU.

torch's CPU generator spends more on a Bernoulli draw than a narrow layer on its matrix products:
at width 64, drawing masks is a tenth of a training step. Here each 64-bit word of the generator
decides about four elements, 16 bits each.
"""

import torch
import torch.nn.functional as F
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor

LEVELS = 1 << 16  # probabilities are multiples of 1 / LEVELS
ELEMENTS_A_WORD = 4  # that one 64-bit word decides about


class Dropout(FairseqDropout):
    """x / (1 - p) where an element is kept, with probability 1 - p, else 0; as fairseq's, faster.

    On the CPU p is rounded to a multiple of 2^-16, and the expectation of the output stays x.
    --retain-dropout works as in fairseq.
    """

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """Return x, of any shape, after dropout; `inplace` is fairseq's, and not used."""
        if self.p == 0 or not (self.training or self.apply_during_inference):
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return F.dropout(x, self.p)
        return x * kept(x, round((1 - self.p) * LEVELS))


def kept(like: Tensor, keep: int) -> Tensor:
    """Return a factor for each element: LEVELS / keep with probability keep / LEVELS, else 0.

    It is a number and no boolean, which torch's CPU kernels multiply with several times slower.
    """
    if keep in (0, LEVELS):
        return torch.full_like(like, keep / LEVELS)
    words = torch.empty(-(-like.numel() // ELEMENTS_A_WORD), dtype=torch.int64)
    bits = words.random_(-(2**63), None).view(torch.int16)[: like.numel()].view(like.shape)
    factors = torch.empty(like.shape, dtype=like.dtype)
    return torch.lt(bits, keep - LEVELS // 2, out=factors).mul_(LEVELS / keep)
