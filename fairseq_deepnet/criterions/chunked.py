"""Label-smoothed cross-entropy of features, a chunk of tokens at a time.

Shapes: N = tokens, n = tokens of a chunk, C = channels, V = vocabulary.

With z = x W' + b, p = softmax(z), smoothing s, e = s / (V - 1) and a = 1 - s - e, fairseq's loss of
a token with target t is -a log p_t - e sum_v log p_v, and its gradient dz = p - a [v = t] - e. The
table of a chunk gives its share of the losses and of both gradients, and the next chunk takes its
memory: one exponential an entry, three matrix products a token as with the whole table, nothing
of size N x V, and nothing left for the backward pass but to scale the gradients.

The term e is the same in every column, so it never touches a table: its part of the losses and of
the gradients follows from the sum of W over V and the sum of x over N.

torch 2.13 has linear_cross_entropy; its chunked path refuses label smoothing, and gives no nll
beside the loss.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CPU_ROWS: Final = (128, 512)
"""Bounds of n on the CPU, where n = C between them.

Measured on one core, fp32 and bf16, V 8,192 and 65,536, C 64, 256 and 512. W and the sums of its
gradient are read once a chunk: with fewer rows than C that takes longer than the table itself; with
more, the table leaves the cache between the passes over it.
"""
CPU_BLOCK: Final = 2**20
"""Elements of the weight's gradient that half precision adds up at once on the CPU, in the cache:
the product comes rounded, and torch makes a copy in float32 to add it to one."""
GPU_TABLE: Final = 2**26
"""Elements of a chunk's table on a GPU: enough rows to fill it, and 256 MiB in fp32."""
FP16_LIFT: Final = 2.0**14
"""What fp16 gradients of logits, at most 1 in size, are multiplied with while rounded: 1 / V
would be subnormal for large vocabularies."""
LEAST_PROBABILITY: Final = 1e-30
"""Below it -log p is taken from the logits: float32 would lose digits, and then be infinite."""


class Losses(NamedTuple):
    """Sums over tokens, tensors of one number: natural logarithms, and how often the target was
    the likeliest word (0 unless asked for).
    """

    loss: Tensor
    nll: Tensor
    correct: Tensor


def chunk_rows(width: int, vocabulary: int, on_gpu: bool) -> int:
    """Return n, the tokens of a chunk, for features of `width` channels."""
    if on_gpu:
        return max(CPU_ROWS[1], GPU_TABLE // vocabulary)
    return min(max(width, CPU_ROWS[0]), CPU_ROWS[1])


def product_dtype(features: Tensor) -> torch.dtype:
    """Return the type of matrix products: autocast's, or else that of the features.

    On the CPU fp16 is brought to fp32: products come back in fp16 there, where a sum of many tokens
    overflows. GPUs give them in fp32.
    """
    device = features.device.type
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else features.dtype
    return torch.float32 if dtype is torch.float16 and device == "cpu" else dtype


def counted(target: Tensor, padding: int) -> Tensor:
    """Return where in `target`, flattened, no padding is. The host waits for a GPU's answer."""
    return target.reshape(-1).ne(padding).nonzero().squeeze(1)


def smoothed_cross_entropy(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    smoothing: float,
    padding: int,
    accuracy: bool = False,
    rows: Tensor | None = None,
) -> Losses:
    """Return the losses of features [..., C] against target [...], padding left out.

    The first is differentiable once, by features, weight [V, C] and bias [V]; the loss and its
    gradients are summed in float32 (float64 for float64), whatever the products are computed in.

    Args:
        smoothing: s, which fairseq calls epsilon.
        padding: the index whose rows are not computed.
        accuracy: whether to count likeliest words.
        rows: `counted(target, padding)`, where that is known.
    """
    dtype = product_dtype(features)
    rows = counted(target, padding) if rows is None else rows
    flat = features.reshape(-1, features.size(-1))
    # read here, because inside the function there are never gradients to be made
    wanted = tuple(
        torch.is_grad_enabled() and x is not None and x.requires_grad
        for x in (features, weight, bias)
    )
    with torch.autocast(features.device.type, enabled=False):
        given = (flat, weight, bias, rows, target.reshape(-1)[rows], smoothing, dtype)
        losses = _ChunkedCrossEntropy.apply(*given, wanted, accuracy)  # type: ignore[no-untyped-call]
        return Losses(*losses)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Computes its gradients in the forward pass, where the tables are, and then only scales them.

    They are kept in float32 until then: a loss scale may still come, without which half precision
    would round small ones to zero.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rows: Tensor,
        target: Tensor,
        smoothing: float,
        dtype: torch.dtype,
        wanted: tuple[bool, ...],
        accuracy: bool,
    ) -> Losses:
        given = (features[rows], weight, bias, target, smoothing, dtype)
        walk = ChunkWalk(*given, wanted=wanted, accuracy=accuracy)
        losses = walk.run()
        ctx.rows, ctx.shape, ctx.grads = rows, features.shape, walk.grads
        ctx.dtypes = [None if x is None else x.dtype for x in (features, weight, bias)]
        ctx.mark_non_differentiable(losses.nll, losses.correct)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        if ctx.grads is None:
            raise RuntimeError("this loss has been differentiated; compute it again for another")
        grads, ctx.grads = ctx.grads, None
        # on the CPU it costs nothing to see that there is nothing to do
        unscaled = not scale.is_cuda and float(scale) == 1.0
        made: list[Tensor | None] = []
        for grad, dtype in zip(grads, ctx.dtypes, strict=True):
            if grad is not None:
                grad = (grad if unscaled else grad.mul_(scale)).to(dtype)
            made.append(grad)
        if made[0] is not None and len(made[0]) < ctx.shape[0]:  # padding has no gradient
            whole = made[0].new_zeros(ctx.shape)
            made[0] = whole.index_copy_(0, ctx.rows, made[0])
        return (*made, None, None, None, None, None, None)


class ChunkWalk:
    """Goes through the tokens and collects losses and gradients.

    Args:
        x: [N, C]. weight: W, [V, C]. bias: b, [V], or None. target: [N], indices into V.
        smoothing: s. dtype: of the matrix products.
        wanted: which gradients are, of features, weight and bias.
        accuracy: whether to count likeliest words.

    Attributes:
        grads: of x, weight and bias, None where not wanted; of the loss, in the type of sums.
    """

    def __init__(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        smoothing: float,
        dtype: torch.dtype,
        wanted: tuple[bool, ...],
        accuracy: bool,
    ) -> None:
        self.sums = torch.float64 if dtype is torch.float64 else torch.float32
        self.x, self.w, self.target, self.accuracy = x.to(dtype), weight.to(dtype), target, accuracy
        self.b = None if bias is None else bias.to(self.sums)
        vocabulary, width = weight.shape
        self.each = smoothing / (vocabulary - 1)
        self.on_target = 1.0 - smoothing - self.each
        self.lift = FP16_LIFT if dtype is torch.float16 else 1.0
        # before there are tables: in half precision torch's CPU kernel makes a copy in fp32
        self.columns = self.w.sum(dim=0, dtype=self.sums)
        self.rows = min(chunk_rows(width, vocabulary, x.is_cuda), max(len(target), 1))
        self.table = self._table(self.sums)
        self.probabilities = self._table(self.sums)
        # products in half precision are rounded to it, but for a GPU's, which give their sums
        self.half = None if dtype is self.sums else self._table(dtype)
        total = self.x.sum(dim=0, dtype=self.sums) * -self.each
        self.grads = (
            torch.empty_like(self.x, dtype=self.sums) if wanted[0] else None,
            total.expand(weight.shape).contiguous() if wanted[1] else None,
            total.new_full((vocabulary,), -self.each * len(target)) if wanted[2] else None,
        )

    def _table(self, dtype: torch.dtype) -> Tensor:
        return self.x.new_empty((self.rows, self.w.size(0)), dtype=dtype)

    def run(self) -> Losses:
        """Compute all chunks."""
        count = len(self.target)
        nll, log_sum = (self.x.new_empty(count, dtype=self.sums) for _ in range(2))
        correct = torch.zeros((), dtype=torch.long, device=self.x.device)
        for start in range(0, count, self.rows):
            part = slice(start, min(start + self.rows, count))
            logits = self._logits(part)
            if self.accuracy:
                correct += logits.argmax(dim=1).eq(self.target[part]).sum()
            probabilities = self._probabilities(logits, part, nll, log_sum)
            if any(grad is not None for grad in self.grads):
                self._gradients(self._differences(probabilities, part), part)
        if self.grads[0] is not None:
            self.grads[0].sub_(self.columns, alpha=self.each)
        # -sum_v log p_v = V log(sum_v e^z_v) - sum_v z_v, and the last is x times W's sum over V
        logits_sum = (self.x.sum(dim=0, dtype=self.sums) * self.columns).sum()
        if self.b is not None:
            logits_sum = logits_sum + count * self.b.sum()
        smooth = self.w.size(0) * log_sum.sum() - logits_sum
        total = nll.sum()
        return Losses(self.on_target * total + self.each * smooth, total, correct)

    def _multiply(self, left: Tensor, right: Tensor, out: Tensor) -> Tensor:
        """Write a matrix product into `out`, which is of the type of sums."""
        if self.half is None:
            return torch.mm(left, right, out=out)
        return out.copy_(self._half_product(left, right))

    def _half_product(self, left: Tensor, right: Tensor) -> Tensor:
        """Return a matrix product in half precision; GPUs do not round its sums."""
        if left.is_cuda:
            return torch.mm(left, right, out_dtype=self.sums)
        return torch.mm(left, right)

    def _logits(self, part: slice) -> Tensor:
        """Return z [n, V] of a chunk."""
        x = self.x[part]
        logits = self.table[: len(x)]
        if self.half is None or x.is_cuda:
            self._multiply(x, self.w.t(), logits)
        else:
            logits.copy_(torch.mm(x, self.w.t(), out=self.half[: len(x)]))
        return logits if self.b is None else logits.add_(self.b)

    def _differences(self, table: Tensor, part: slice) -> Tensor:
        """Turn p [n, V] of a chunk into p - a [v = t], lifted and in the type of the products."""
        target = self.target[part, None]
        table.scatter_add_(1, target, table.new_full(target.shape, -self.on_target))
        if self.lift != 1:
            table.mul_(self.lift)
        return table if self.half is None else self.half[: len(table)].copy_(table)

    def _probabilities(self, logits: Tensor, part: slice, nll: Tensor, log_sum: Tensor) -> Tensor:
        """Return p [n, V] of a chunk; fill its part of -log p_t and of log(sum e^z), both [N]."""
        table = torch.softmax(logits, dim=1, out=self.probabilities[: len(logits)])
        target = self.target[part, None]
        likely, at_target = table.gather(1, target), logits.gather(1, target)
        minus = likely.log().neg_()
        unlikely = (likely < LEAST_PROBABILITY).squeeze(1)
        if unlikely.any():
            exact = logits[unlikely].logsumexp(dim=1, keepdim=True)
            minus[unlikely] = exact - at_target[unlikely]
        nll[part] = minus.squeeze(1)
        log_sum[part] = (minus + at_target).squeeze(1)
        return table

    def _gradients(self, table: Tensor, part: slice) -> None:
        """Add a chunk's part of the gradients, by its p - a [v = t], lifted."""
        features, weight, bias = self.grads
        if bias is not None:
            bias.add_(table.sum(dim=0, dtype=self.sums), alpha=1 / self.lift)
        if features is not None:
            made = self._multiply(table, self.w, features[part])
            if self.lift != 1:
                made.div_(self.lift)
        if weight is not None and self.half is None:
            weight.addmm_(table.t(), self.x[part])
        elif weight is not None:
            block = len(weight) if weight.is_cuda else max(1, CPU_BLOCK // weight.size(1))
            columns = zip(weight.split(block), table.split(block, dim=1), strict=True)
            for some, of_words in columns:
                some.add_(self._half_product(of_words.t(), self.x[part]), alpha=1 / self.lift)
