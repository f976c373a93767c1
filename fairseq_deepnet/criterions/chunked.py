"""Label-smoothed cross-entropy of features, computed in chunks of tokens.

Shapes: N = tokens, n = tokens per chunk, C = channels, V = vocabulary size.

Let z = x W^T + b, p = softmax(z), s the smoothing, e = s / (V - 1), a = 1 - s - e. fairseq's loss
for a token with target t is -a log p_t - e sum_v log p_v, with the gradient dz = p - a [v = t] - e.
Each chunk's table [n, V] yields the chunk's contribution to losses and gradients, and the next
chunk reuses the table's memory. Each chunk needs one exponential per entry and three matrix
products, so chunking adds no arithmetic compared with a single table [N, V]. The backward pass only
scales the gradients.

The term e is the same in every column and needs no table: its contribution to losses and gradients
follows from the sum of W over V and the sum of x over N.

torch 2.13's chunked linear_cross_entropy supports neither label smoothing nor a separate nll.
"""

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CPU_ROWS: Final = (128, 512)
"""Lower and upper bounds of n on the CPU; between them, n is C.

W and its gradient are read once per chunk. If n is below C, this takes longer than computing the
table; if n is above, the table does not stay in cache. The bounds were measured on one core with
fp32 and bf16, V = 8,192 and 65,536, and C = 64, 256 and 512.
"""
CPU_BLOCK: Final = 2**20
"""Number of elements of W's gradient that are added at once in half precision on the CPU.

torch copies each rounded product to float32 before adding it; this many elements fit in cache.
"""
GPU_TABLE: Final = 2**26
"""Number of elements in a chunk's table on a GPU: 256 MiB in fp32, and enough rows for speed."""
FP16_LIFT: Final = 2.0**14
"""Factor by which logits' gradients (at most 1) are multiplied before they are rounded to fp16.

Without it, gradients of 1 / V would be subnormal for large vocabularies.
"""
LEAST_PROBABILITY: Final = 1e-30
"""Probability below which -log p is computed from logits, as log(p) loses digits in float32."""


class Losses(NamedTuple):
    """Scalar sums of the losses over tokens.

    Args:
        loss: label-smoothed loss in nats.
        nll: negative log-likelihood in nats.
        correct: number of correctly predicted targets (0 unless requested).
    """

    loss: Tensor
    nll: Tensor
    correct: Tensor


def chunk_rows(width: int, vocabulary: int, on_gpu: bool) -> int:
    """Return n, the number of tokens per chunk, for features of `width` channels."""
    if on_gpu:
        return max(CPU_ROWS[1], GPU_TABLE // vocabulary)
    return min(max(width, CPU_ROWS[0]), CPU_ROWS[1])


def product_dtype(features: Tensor) -> torch.dtype:
    """Return the input dtype of matrix products, which is autocast's or the features'.

    On the CPU, fp32 replaces fp16, in which sums over many tokens would overflow. GPUs return the
    products of fp16 matrices in fp32.
    """
    device = features.device.type
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else features.dtype
    return torch.float32 if dtype is torch.float16 and device == "cpu" else dtype


def counted(target: Tensor, padding: int) -> Tensor:
    """Return the flat indices of targets that are not padding; on a GPU, the call synchronises."""
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
    """Return the losses of features [..., C] against target [...], ignoring padding.

    `loss` can be differentiated once, with respect to features, weight [V, C] and bias [V]. Losses
    and gradients are accumulated in float32 (or float64), whatever the dtype of the products.

    Args:
        smoothing: label smoothing s, which fairseq calls epsilon.
        padding: dictionary index of the targets to ignore.
        accuracy: whether to count correctly predicted targets.
        rows: result of `counted(target, padding)`, if already computed.
    """
    dtype = product_dtype(features)
    rows = counted(target, padding) if rows is None else rows
    flat = features.reshape(-1, features.size(-1))
    # These flags are computed here, as gradients are always disabled inside the function.
    needs_grad = tuple(
        torch.is_grad_enabled() and x is not None and x.requires_grad
        for x in (features, weight, bias)
    )
    with torch.autocast(features.device.type, enabled=False):
        inputs = (flat, weight, bias, rows, target.reshape(-1)[rows], smoothing, dtype)
        losses = _ChunkedCrossEntropy.apply(*inputs, needs_grad, accuracy)  # type: ignore[no-untyped-call]
        return Losses(*losses)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Loss whose gradients are computed in the forward pass, while each chunk's table exists.

    Until the backward pass scales them, gradients are stored in float32, because half precision
    would round small gradients to zero before the loss scale is applied.
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
        needs_grad: tuple[bool, ...],
        accuracy: bool,
    ) -> Losses:
        inputs = (features[rows], weight, bias, target, smoothing, dtype)
        walk = ChunkWalk(*inputs, needs_grad=needs_grad, accuracy=accuracy)
        losses = walk.run()
        ctx.rows, ctx.shape, ctx.grads = rows, features.shape, walk.grads
        ctx.dtypes = [None if x is None else x.dtype for x in (features, weight, bias)]
        ctx.mark_non_differentiable(losses.nll, losses.correct)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        if ctx.grads is None:
            raise RuntimeError("this loss was already differentiated; compute it again")
        grads, ctx.grads = ctx.grads, None
        # Reading the scale synchronises with a GPU.
        unscaled = not scale.is_cuda and float(scale) == 1.0
        scaled: list[Tensor | None] = []
        for grad, dtype in zip(grads, ctx.dtypes, strict=True):
            if grad is not None:
                grad = (grad if unscaled else grad.mul_(scale)).to(dtype)
            scaled.append(grad)
        if scaled[0] is not None and len(scaled[0]) < ctx.shape[0]:  # padding has no gradient
            whole = scaled[0].new_zeros(ctx.shape)
            scaled[0] = whole.index_copy_(0, ctx.rows, scaled[0])
        return (*scaled, None, None, None, None, None, None)


class ChunkWalk:
    """Computation of losses and gradients, chunk by chunk.

    Args:
        x: [N, C]. weight: W, [V, C]. bias: b, [V], or None. target: [N], indices into V.
        smoothing: label smoothing s.
        dtype: input dtype of matrix products.
        needs_grad: whether features, weight and bias need gradients.
        accuracy: whether to count correctly predicted targets.

    Attributes:
        grads: gradients of x, weight and bias, in dtype `sums`; None if not needed.
    """

    def __init__(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        smoothing: float,
        dtype: torch.dtype,
        needs_grad: tuple[bool, ...],
        accuracy: bool,
    ) -> None:
        self.sums = torch.float64 if dtype is torch.float64 else torch.float32
        self.x, self.w, self.target, self.accuracy = x.to(dtype), weight.to(dtype), target, accuracy
        self.b = None if bias is None else bias.to(self.sums)
        vocabulary, width = weight.shape
        self.each = smoothing / (vocabulary - 1)
        self.on_target = 1.0 - smoothing - self.each
        self.lift = FP16_LIFT if dtype is torch.float16 else 1.0
        # In half precision torch's CPU kernel copies W to fp32, so this sum precedes the tables.
        self.columns = self.w.sum(dim=0, dtype=self.sums)
        self.rows = min(chunk_rows(width, vocabulary, x.is_cuda), max(len(target), 1))
        self.table = self._table(self.sums)
        self.probabilities = self._table(self.sums)
        # buffer for half-precision products; GPUs return fp32 products
        self.half = None if dtype is self.sums else self._table(dtype)
        total = self.x.sum(dim=0, dtype=self.sums) * -self.each
        self.grads = (
            torch.empty_like(self.x, dtype=self.sums) if needs_grad[0] else None,
            total.expand(weight.shape).contiguous() if needs_grad[1] else None,
            total.new_full((vocabulary,), -self.each * len(target)) if needs_grad[2] else None,
        )

    def _table(self, dtype: torch.dtype) -> Tensor:
        return self.x.new_empty((self.rows, self.w.size(0)), dtype=dtype)

    def run(self) -> Losses:
        """Process all chunks and return the losses."""
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
        # -sum_v log p_v = V log(sum_v e^z_v) - sum_v z_v, where sum_v z_v = x (sum_v W_v)
        logits_sum = (self.x.sum(dim=0, dtype=self.sums) * self.columns).sum()
        if self.b is not None:
            logits_sum = logits_sum + count * self.b.sum()
        smooth = self.w.size(0) * log_sum.sum() - logits_sum
        total = nll.sum()
        return Losses(self.on_target * total + self.each * smooth, total, correct)

    def _multiply(self, left: Tensor, right: Tensor, out: Tensor) -> Tensor:
        """Write a matrix product to `out`, whose dtype is `self.sums`."""
        if self.half is None:
            return torch.mm(left, right, out=out)
        return out.copy_(self._half_product(left, right))

    def _half_product(self, left: Tensor, right: Tensor) -> Tensor:
        """Return a product of half-precision matrices; on a GPU, its dtype is `self.sums`."""
        if left.is_cuda:
            return torch.mm(left, right, out_dtype=self.sums)
        return torch.mm(left, right)

    def _logits(self, part: slice) -> Tensor:
        """Return a chunk's logits z [n, V]."""
        x = self.x[part]
        logits = self.table[: len(x)]
        if self.half is None or x.is_cuda:
            self._multiply(x, self.w.t(), logits)
        else:
            logits.copy_(torch.mm(x, self.w.t(), out=self.half[: len(x)]))
        return logits if self.b is None else logits.add_(self.b)

    def _differences(self, table: Tensor, part: slice) -> Tensor:
        """Convert a chunk's p [n, V] to lift * (p - a [v = t]), an input of matrix products."""
        target = self.target[part, None]
        table.scatter_add_(1, target, table.new_full(target.shape, -self.on_target))
        if self.lift != 1:
            table.mul_(self.lift)
        return table if self.half is None else self.half[: len(table)].copy_(table)

    def _probabilities(self, logits: Tensor, part: slice, nll: Tensor, log_sum: Tensor) -> Tensor:
        """Return a chunk's p [n, V]; write -log p_t and log(sum e^z) to `nll` and `log_sum`."""
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
        """Add a chunk's contribution to the gradients; `table` is lift * (p - a [v = t])."""
        features, weight, bias = self.grads
        if bias is not None:
            bias.add_(table.sum(dim=0, dtype=self.sums), alpha=1 / self.lift)
        if features is not None:
            product = self._multiply(table, self.w, features[part])
            if self.lift != 1:
                product.div_(self.lift)
        if weight is not None and self.half is None:
            weight.addmm_(table.t(), self.x[part])
        elif weight is not None:
            block = len(weight) if weight.is_cuda else max(1, CPU_BLOCK // weight.size(1))
            columns = zip(weight.split(block), table.split(block, dim=1), strict=True)
            for rows, words in columns:
                rows.add_(self._half_product(words.t(), self.x[part]), alpha=1 / self.lift)
