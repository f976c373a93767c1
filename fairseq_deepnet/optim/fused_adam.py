"""`--optimizer fused_adam`: torch's fused Adam, with the results and the state of fairseq's adam.

fairseq's Adam runs six operations per tensor, and a 500L-500L model has about 21,000 tensors.
torch's kernel updates all of them in one call. fairseq divides by sqrt(v) + eps and then corrects
the bias; torch divides by sqrt(v / c) + eps with c = 1 - beta2^step. The steps are equal if torch
receives eps / sqrt(c) as its eps.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim import adam as stock
from torch import Tensor

from ..errors import ConfigurationError

BUCKET: Final = 2**24
"""Number of elements (64 MiB in float32) at which a chunk of converted tensors is complete."""
Tensors = list[Tensor]
Reduce = Callable[[Tensor], Tensor]
Four = tuple[Tensors, Tensors, Tensors, Tensors]
"""Weights, gradients and both moments."""
Kind = tuple[int, torch.device, torch.dtype, torch.dtype]


class FusedAdam(stock.Adam):
    """fairseq's Adam with only a few kernel calls per step, but the same state, options and errors.

    The state is float32 for weights of any dtype. Parameters without a gradient (frozen, or in a
    dropped layer) are skipped, and their step counts do not change.

    Attributes:
        factor: factor that torch's kernel applies to the gradients in the next step.
    """

    factor: float | Tensor = 1.0

    @torch.no_grad()
    def step(self) -> None:
        """Perform one update; raise RuntimeError if a gradient is sparse, as in fairseq."""
        factor, self.factor = self.factor, 1.0
        for group in self.param_groups:
            for (step, device, *_), (params, grads, means, squares) in self._by_kind(group).items():
                divisor = _divisor(factor, device)
                if divisor is not None and grads[0].dtype is not torch.float32:
                    # with --memory-efficient-*, gradients are rounded as in fairseq
                    torch._foreach_mul_(grads, factor)
                    divisor = None
                settings = _settings(group, step) | {"grad_scale": divisor}
                steps = torch.full((), float(step), device=device)
                for p, g, m, v in _in_float32(params, grads, means, squares):
                    torch._fused_adamw_(p, g, m, v, [], [steps] * len(p), **settings)

    def _by_kind(self, group: dict[str, Any]) -> dict[Kind, Four]:
        """Group weights, gradients and moments by updated step count, device and dtype."""
        groups: dict[Kind, Four] = defaultdict(lambda: ([], [], [], []))
        for p in group["params"]:
            if p.grad is None:
                continue
            if p.grad.is_sparse:
                raise RuntimeError("--optimizer fused_adam does not support sparse gradients")
            state = self.state[p]
            if not state:
                state["step"] = 0
                state["exp_avg"] = torch.zeros_like(p, dtype=torch.float32)
                state["exp_avg_sq"] = torch.zeros_like(p, dtype=torch.float32)
            # apex's Adam, which fairseq uses if available, stores the step count in the group
            state["step"] = state.get("step", group.get("step", 0)) + 1
            order = p.stride()
            layout = (torch.float32, p.device, order)
            for name in ("exp_avg", "exp_avg_sq"):
                moment = state[name]
                if (moment.dtype, moment.device, moment.stride()) != layout:
                    state[name] = _laid_out(moment, p, torch.float32)
            grad = p.grad if p.grad.stride() == order else _laid_out(p.grad, p, p.grad.dtype)
            params, grads, means, squares = groups[state["step"], p.device, p.dtype, grad.dtype]
            params.append(p.data)
            grads.append(grad)
            means.append(state["exp_avg"])
            squares.append(state["exp_avg_sq"])
        return groups


def _laid_out(x: Tensor, like: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x in the weight's memory layout, which torch's kernel assumes."""
    return torch.empty_like(like, dtype=dtype).copy_(x)


def _settings(group: dict[str, Any], step: int) -> dict[str, Any]:
    """Return the arguments with which torch's kernel performs fairseq's step."""
    beta1, beta2 = group["betas"]
    return {
        "lr": float(group["lr"]),
        "beta1": beta1,
        "beta2": beta2,
        "weight_decay": group["weight_decay"],
        "eps": group["eps"] / math.sqrt(1 - beta2**step),
        "amsgrad": False,
        "maximize": False,
    }


def _divisor(factor: float | Tensor, device: torch.device) -> Tensor | None:
    """Return 1 / factor, by which torch's kernel divides; None if the factor is 1."""
    if not torch.is_tensor(factor):
        return None if factor == 1.0 else torch.full((), 1.0 / factor, device=device)
    return factor.to(device, torch.float32).reciprocal()


def _in_float32(
    params: Tensors, grads: Tensors, means: Tensors, squares: Tensors
) -> Iterator[Four]:
    """Yield the four lists in float32, and convert the weights back afterwards.

    Weights are in half precision only with --memory-efficient-*. Tensors are converted in chunks
    to save memory.
    """
    if params[0].dtype == grads[0].dtype == torch.float32:
        yield params, grads, means, squares
        return
    start = size = 0
    for end, p in enumerate(params, 1):
        size += p.numel()
        if size < BUCKET and end < len(params):
            continue
        part = slice(start, end)
        wide = [x.float() for x in params[part]]
        yield wide, [x.float() for x in grads[part]], means[part], squares[part]
        torch._foreach_copy_(params[part], wide)
        start, size = end, 0


@register_optimizer("fused_adam", dataclass=stock.FairseqAdamConfig)
class FairseqAdam(stock.FairseqAdam):
    """fairseq's adam with fewer kernel calls, but the same options, results, state and class name.

    fairseq's trainer compares class names when it loads a checkpoint, so a run can resume with
    either optimiser.

    Raises:
        ConfigurationError: if an option of adam is not supported.
    """

    def __init__(self, cfg: Any, params: Any) -> None:
        for option in ("fp16_adam_stats", "use_old_adam", "tpu"):
            if getattr(cfg, option, False):
                raise ConfigurationError(
                    f"--optimizer fused_adam has no --{option.replace('_', '-')}; leave it out, or"
                    " choose --optimizer adam"
                )
        # adam's constructor would build another optimiser and look for apex
        FairseqOptimizer.__init__(self, cfg)
        self._optimizer = FusedAdam(params, **self.optimizer_config)
        # Pending factor on the gradients, named as in FP16Optimizer. torch's kernel applies it in
        # the step, which saves a pass over all gradients.
        self._multiply_factor: float | Tensor = 1.0

    def multiply_grads(self, c: float | Tensor) -> None:
        """Multiply gradients by c in the next step, without changing `grad` now."""
        self._multiply_factor = self._multiply_factor * c

    def clip_grad_norm(self, max_norm: float, aggregate_norm_fn: Reduce | None = None) -> Tensor:
        """Return the gradient norm in float32; the next step clips gradients if `max_norm` > 0."""
        norm = gradient_norm(self.params) * self._multiply_factor
        if aggregate_norm_fn is not None:
            norm = aggregate_norm_fn(norm)
        if max_norm > 0:
            self.multiply_grads(clipping_factor(norm, max_norm))
        return norm

    def step(self, closure: Any = None, groups: Any = None) -> None:
        """Perform one update, with gradients multiplied by the factors of `multiply_grads`.

        `scale` is not an argument: fairseq passes it only if `supports_step_with_scale` is set.
        """
        self._optimizer.factor = self._multiply_factor
        self._multiply_factor = 1.0
        self._optimizer.step()

    def zero_grad(self) -> None:
        """Drop all gradients in one pass; fairseq's version needs two passes."""
        self._multiply_factor = 1.0
        for p in self.params:
            p.grad = None


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """Return the 2-norm of all gradients in float32, as fairseq.utils.clip_grad_norm_ does.

    Gradients of experts are excluded, because they differ between processes.
    """
    params = list(parameters)
    grads = [p.grad.detach() for p in params if p.grad is not None and not hasattr(p, "expert")]
    if not grads:
        return params[0].new_tensor(0.0) if params else torch.tensor(0.0)
    return torch.stack(torch._foreach_norm(grads, 2, dtype=torch.float32)).norm()


def clipping_factor(norm: Tensor, max_norm: float) -> Tensor:
    """Return the factor (at most 1) that reduces `norm` to `max_norm`, as fairseq computes it."""
    return (max_norm / (norm + 1e-6)).clamp(max=1)
