"""A chunk's losses and the gradient of its logits by one kernel, for GPUs.

Shapes: n = tokens of a chunk, V = vocabulary. With h = max_v z and S = sum_v e^(z_v - h),

    -log p_t = log S - (z_t - h),   p - a [v = t] = e^(z - h - log S) - a [v = t],

exact wherever a softmax is, without a case for small p_t and so without waiting for the device.
torch.compile makes one kernel of it, Triton on GPUs: it reads the logits for h and S, and once more
to write the gradient in the type of the products, where torch's own kernels take a second table of
that size, and a reading and a writing more in half precision.

On a CPU the loss takes a tenth longer so (benchmarks/gpu/loss.py, in fp32): torch's own softmax
computes an exponential once, which costs more there than memory does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger(__name__)


def differences(
    logits: Tensor,
    target: Tensor,
    nll: Tensor,
    log_sum: Tensor,
    table: Tensor | None,
    on_target: float,
    lift: float,
) -> None:
    """Compute the formulas above.

    Args:
        logits: z, [n, V]. target: t, [n].
        nll: [n], becomes -log p_t. log_sum: [n], becomes log(sum_v e^z_v).
        table: [n, V], becomes lift (p - a [v = t]); may be `logits`. None where it is not wanted.
        on_target: a.
    """
    where = target[:, None]
    high = logits.amax(dim=1, keepdim=True)
    log = (logits - high).exp().sum(dim=1, keepdim=True).log()
    at_target = logits.gather(1, where) - high
    nll.copy_((log - at_target).squeeze(1))
    log_sum.copy_((high + log).squeeze(1))
    if table is not None:
        words = torch.arange(logits.size(1), device=logits.device)
        likely = (logits - high - log).exp()
        table.copy_((likely - on_target * (words == where)) * lift)


class OneKernel:
    """`differences`, compiled at the first call, or given up with one warning.

    One compilation serves chunks of every length but 1; the vocabulary, the types and whether there
    is a table each take another.

    Args:
        backend: torch.compile's.
    """

    RECOMPILATIONS = 64  # torch's own limit is 8; then it calls the function as it is

    def __init__(self, backend: str | Callable[..., Any] = "inductor") -> None:
        self._backend = backend
        self._compiled: Callable[..., None] | None = None
        self.given_up = False

    def __call__(self, *given: Tensor | float | None) -> bool:
        """Do what `differences` does. False, and the logits as they were, where that fails: there
        is no Triton or no compiler, the GPU or its driver is too old for them, a folder is full.

        The table, which may be the logits, is what the kernel writes last, so that one which could
        not be compiled, loaded or started has not changed it. A kernel that broke the device has
        broken it for whatever comes next, and is not hidden.
        """
        if self.given_up:
            return False
        try:
            self._run(given)
        except Exception as error:
            cause = getattr(error, "inner_exception", error)  # torch.compile wraps what it meets
            if lacks_memory(cause):  # fairseq's to handle: it makes the update with less
                raise
            self._give_up(cause)
        return not self.given_up

    def _run(self, given: tuple[Tensor | float | None, ...]) -> None:
        # here, because it takes a second to import, which a CPU need not wait
        from torch._dynamo import config, maybe_mark_dynamic

        if config.disable:  # then torch.compile gives the function as it is, with its many tables
            raise RuntimeError("torch.compile is switched off")
        for tensor in given:
            if isinstance(tensor, Tensor):
                maybe_mark_dynamic(tensor, 0)
        if self._compiled is None:
            self._compiled = self._compile()
        self._compiled(*given)

    def _give_up(self, error: Exception) -> None:
        self.given_up = True
        said = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        logger.warning(
            "no fused kernel for the loss, which needs torch.compile with Triton and a C compiler"
            " (%s); nothing need be done: torch's own kernels give the same loss, more slowly",
            said,
        )

    def _compile(self) -> Callable[..., None]:
        compiler: Any = torch.compile  # its annotations lack some of its arguments
        compiled: Callable[..., None] = compiler(
            differences,
            backend=self._backend,
            # else the order of sums is what was fastest when it was tried, again in each run
            options={"deterministic": True} if self._backend == "inductor" else None,
            recompile_limit=self.RECOMPILATIONS,
            isolate_recompiles=True,
        )
        return compiled


def lacks_memory(error: Exception) -> bool:
    """Return True if a device has none left, which Triton says only in words."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower()
