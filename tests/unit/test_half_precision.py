"""bf16 training with a master for each tensor: fairseq's numbers without its loops."""

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.optim.fp16_optimizer import FP16Optimizer
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import fairseq_deepnet  # noqa: F401  (registers the optimiser)
from fairseq_deepnet.optim.half_precision import ForeachMasters

TENSORS = 6


def optimizer(name: str, params: list[Tensor], fp16: bool = False) -> FP16Optimizer:
    settings = Namespace(
        optimizer=name, lr=[0.01], weight_decay=0.1, tpu=False, adam_betas="(0.9, 0.98)"
    )
    common = SimpleNamespace(
        bf16=not fp16,
        fp16_no_flatten_grads=True,
        fp16_scale_window=4,
        fp16_init_scale=128,
        fp16_scale_tolerance=0.0,
        threshold_loss_scale=None,
        min_loss_scale=1e-4,
    )
    return FP16Optimizer.build_optimizer(SimpleNamespace(common=common, optimizer=settings), params)


def weights(dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    torch.manual_seed(3)
    params = [nn.Parameter(torch.randn(5, 4).to(dtype)) for _ in range(TENSORS)]
    params[1].requires_grad_(False)  # frozen
    return params


def train(made: Any, params: list[Tensor], updates: int) -> list[float]:
    """The norms of gradients; the third weight has none in odd updates (LayerDrop)."""
    norms = []
    for update in range(updates):
        made.zero_grad()
        torch.manual_seed(update)
        used = [p for i, p in enumerate(params) if not (i == 2 and update % 2)]
        loss = sum((p.float() * torch.randn(5, 4)).sin().sum() for p in used)
        made.backward(loss)
        made.multiply_grads(0.5)
        norms.append(float(made.clip_grad_norm(0.7)))
        made.step()
    return norms


@pytest.mark.parametrize("fp16", [False, True], ids=["bf16", "fp16"])
def test_the_numbers_are_those_of_fairseqs_loops(fp16: bool) -> None:
    dtype = torch.float16 if fp16 else torch.bfloat16
    stock, ours = weights(dtype), weights(dtype)
    first, second = optimizer("adam", stock, fp16), optimizer("fused_adam", ours, fp16)
    assert type(first) is FP16Optimizer
    assert type(second) is ForeachMasters
    assert train(first, stock, 6) == pytest.approx(train(second, ours, 6), rel=1e-6)
    for a, b in zip(stock, ours, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(first.fp32_params, second.fp32_params, strict=True):
        assert torch.allclose(a, b, rtol=1e-6)


def test_checkpoints_know_both_by_one_name() -> None:
    made = optimizer("fused_adam", weights())
    assert type(made).__name__ == "FP16Optimizer"


def test_copies_do_not_go_tensor_by_tensor() -> None:
    params = weights()
    made = optimizer("fused_adam", params)
    train(made, params, 2)
    calls: list[str] = []

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            calls.append(str(func))
            return func(*args, **(kwargs or {}))

    sum((p.float() ** 2).sum() for p in params).backward()
    made._needs_sync = True
    with Calls():
        made.step()
        made.zero_grad()
    assert calls.count("aten._foreach_copy_.default") == 2
    assert calls.count("aten._foreach_zero_.default") == 1
    assert not [call for call in calls if call.startswith("aten.copy_")]
