"""Half precision with fp32 masters: equality with fairseq's loops, and exact resuming."""

import copy
import logging
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.optim.fp16_optimizer import FP16Optimizer
from torch import Tensor, nn

import fairseq_deepnet.models  # noqa: F401  (registers the optimiser)
from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.optim.half_precision import ExactFP16Optimizer, ForeachMasters, improve

TENSORS = 6


def optimizer(
    name: str, params: list[Tensor], fp16: bool = False, flat: bool = False
) -> FP16Optimizer:
    settings = Namespace(
        optimizer=name, lr=[0.01], weight_decay=0.1, tpu=False, adam_betas="(0.9, 0.98)"
    )
    common = SimpleNamespace(
        bf16=not fp16,
        fp16_no_flatten_grads=not flat,
        fp16_scale_window=4,
        fp16_init_scale=128,
        fp16_scale_tolerance=0.0,
        threshold_loss_scale=None,
        min_loss_scale=1e-4,
    )
    cfg = SimpleNamespace(common=common, optimizer=settings)
    wrapper = FP16Optimizer.build_optimizer(cfg, params)
    improve(wrapper)
    return wrapper


def weights(dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    torch.manual_seed(3)
    params = [nn.Parameter(torch.randn(5, 4).to(dtype)) for _ in range(TENSORS)]
    params[1].requires_grad_(False)  # frozen
    return params


def train(wrapper: Any, params: list[Tensor], updates: int) -> list[float]:
    """Return gradient norms; in odd updates the third weight has no gradient, as with LayerDrop."""
    norms = []
    for update in range(updates):
        wrapper.zero_grad()
        torch.manual_seed(update)
        used = [p for i, p in enumerate(params) if not (i == 2 and update % 2)]
        loss = sum((p.float() * torch.randn(5, 4)).sin().sum() for p in used)
        wrapper.backward(loss)
        wrapper.multiply_grads(0.5)
        norms.append(float(wrapper.clip_grad_norm(0.7)))
        wrapper.step()
    return norms


@pytest.mark.parametrize("fp16", [False, True], ids=["bf16", "fp16"])
def test_results_equal_fairseqs_loops(fp16: bool) -> None:
    dtype = torch.float16 if fp16 else torch.bfloat16
    stock, ours = weights(dtype), weights(dtype)
    first, second = optimizer("adam", stock, fp16), optimizer("fused_adam", ours, fp16)
    assert type(first) is ExactFP16Optimizer
    assert type(second) is ForeachMasters
    # fairseq's trainer compares class names when it loads a checkpoint
    assert type(first).__name__ == type(second).__name__ == FP16Optimizer.__name__
    assert train(first, stock, 6) == pytest.approx(train(second, ours, 6), rel=1e-6)
    for a, b in zip(stock, ours, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(first.fp32_params, second.fp32_params, strict=True):
        assert torch.allclose(a, b, rtol=1e-6)


WAYS = {"bf16": (False, False), "fp16": (True, False), "fp16, one flat row": (True, True)}


@pytest.fixture(params=WAYS.values(), ids=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, bool]:
    """Return flags for fp16 and for one flat master, and simulate a GPU."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    setting: tuple[bool, bool] = request.param
    return setting


def start(fp16: bool, flat: bool = False) -> tuple[FP16Optimizer, list[Tensor]]:
    """Return an optimiser after three updates, and its parameters."""
    params = weights(torch.float16 if fp16 else torch.bfloat16)
    if flat:  # a flat master excludes frozen parameters
        params = [p for p in params if p.requires_grad]
    wrapper = optimizer("fused_adam", params, fp16, flat)
    train(wrapper, params, 3)
    return wrapper, params


def resume(state: dict[str, Any], params: list[Tensor], fp16: bool, flat: bool = False) -> Any:
    """Return an optimiser resumed from a state and from rounded parameters."""
    copies = [nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad) for p in params]
    wrapper = optimizer("fused_adam", copies, fp16, flat)
    wrapper.load_state_dict(copy.deepcopy(state))
    return wrapper


def masters(wrapper: Any) -> list[Tensor]:
    masters = wrapper.fp32_params
    return list(masters.values()) if isinstance(masters, dict) else list(masters)


def row(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.detach().float().flatten() for part in parts])


def test_stock_fairseq_loads_the_saved_state(way: tuple[bool, bool]) -> None:
    first, params = start(*way)
    stock = resume(first.state_dict(), params, *way)
    FP16Optimizer.load_state_dict(stock, first.state_dict())
    moments = stock.fp32_optimizer.state_dict()["state"]
    for key, expected in first.fp32_optimizer.state_dict()["state"].items():
        assert torch.equal(moments[key]["exp_avg"], expected["exp_avg"])


def test_a_state_without_fp32_weights_is_loaded_with_one_warning(
    way: tuple[bool, bool], caplog: pytest.LogCaptureFixture
) -> None:
    first, params = start(*way)
    state = first.state_dict()
    del state["fp32_params"]
    with caplog.at_level(logging.WARNING):
        second = resume(state, params, *way)
    (warning,) = caplog.messages
    assert "contains no fp32 weights: they are restored from its rounded ones" in warning
    assert torch.equal(row(masters(second)), row(params))


@pytest.mark.parametrize("fault", ["a tensor less", "another shape"])
def test_masters_with_other_shapes_are_an_error(way: tuple[bool, bool], fault: str) -> None:
    first, params = start(*way)
    state = first.state_dict()
    *others, last = state["fp32_params"]
    state["fp32_params"] = others if fault == "a tensor less" else [*others, last.flatten()[1:]]
    with pytest.raises(ConfigurationError, match=r"does not match the trained .*--reset-optimizer"):
        resume(state, params, *way)


def test_the_other_half_precision_loads_the_fp32_weights() -> None:
    first, params = start(fp16=False)
    halves = [nn.Parameter(p.detach().half(), p.requires_grad) for p in params]
    second = resume(first.state_dict(), halves, fp16=True)
    assert torch.equal(row(masters(second)), row(masters(first)))
    assert torch.equal(second.fp16_params[0], masters(first)[0].half())
