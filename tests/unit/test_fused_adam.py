"""--optimizer fused_adam against fairseq's adam: weights, state and norms."""

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq import utils
from fairseq.optim import FP16Optimizer, MemoryEfficientFP16Optimizer
from fairseq.optim.adam import FairseqAdam as StockAdam
from fairseq.optim.adam import FairseqAdamConfig
from omegaconf import OmegaConf
from torch import Tensor, nn

import fairseq_deepnet.models  # noqa: F401  (registers the optimiser)
from fairseq_deepnet.optim import fused_adam
from fairseq_deepnet.optim.fused_adam import FairseqAdam

SHAPES = [(3, 4), (4,), (7, 2), (), (1,), (64, 33)]


def config(**options: Any) -> Any:
    defaults = {"adam_betas": "(0.9, 0.98)", "adam_eps": 1e-3, "weight_decay": 0.0}
    cfg = FairseqAdamConfig(**(defaults | options))
    cfg.tpu, cfg.lr = False, [0.01]
    return cfg


def weights(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in SHAPES]


def give_gradients(params: list[nn.Parameter], update: int, skipped: int | None = None) -> None:
    generator = torch.Generator().manual_seed(100 + update)
    for index, p in enumerate(params):
        grad = torch.randn(p.shape, generator=generator) * 10.0 ** (update % 5 - 3)
        p.grad = None if index == skipped else grad.to(p.dtype)


def run(build: Callable[..., Any], updates: int = 12, **options: Any) -> tuple[Any, Any]:
    params = weights()
    optimizer = build(config(**options), params)
    for update in range(updates):
        give_gradients(params, update, skipped=2 if 3 <= update < 6 else None)
        optimizer.set_lr(0.01 / (1 + update))
        optimizer.step()
    return params, optimizer


def assert_same(ours: Any, theirs: Any) -> None:
    # gradients of both signs, up to 40, may cancel in a moving average
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("eps", [1e-8, 1e-3, 1.0])
def test_weights_and_state_equal_fairseqs(decay: float, eps: float) -> None:
    options = {"weight_decay": decay, "adam_eps": eps}
    params, ours = run(FairseqAdam, **options)
    expected, theirs = run(StockAdam, **options)
    assert_same([p.data for p in params], [p.data for p in expected])
    state, expected_state = ours.state_dict(), theirs.state_dict()
    assert_same(state["state"], expected_state["state"])
    assert state["param_groups"] == expected_state["param_groups"]


@pytest.mark.parametrize("first", [FairseqAdam, StockAdam], ids=["ours first", "fairseq's first"])
def test_either_optimiser_resumes_from_the_others_state(first: Any) -> None:
    second = StockAdam if first is FairseqAdam else FairseqAdam
    params, before = run(first)
    state = copy.deepcopy(before.state_dict())
    copies = [nn.Parameter(p.detach().clone()) for p in params]
    after = second(config(), copies)
    after.load_state_dict(state, {"lr": 0.01})
    before.load_state_dict(copy.deepcopy(state), {"lr": 0.01})
    for update in range(20, 25):
        for parameters, optimizer in ((params, before), (copies, after)):
            give_gradients(parameters, update)
            optimizer.step()
    assert_same([p.data for p in copies], [p.data for p in params])
    assert before.__class__.__name__ == after.__class__.__name__


def test_a_step_count_in_the_group_is_loaded() -> None:
    """apex's Adam, which fairseq uses on a GPU if installed, stores the count there."""
    params, before = run(FairseqAdam, updates=4)
    state = copy.deepcopy(before.state_dict())
    for moments in state["state"].values():
        del moments["step"]
    state["param_groups"][0]["step"] = 4
    copies = [nn.Parameter(p.detach().clone()) for p in params]
    after = FairseqAdam(config(), copies)
    after.load_state_dict(state)
    give_gradients(copies, 4)
    after.step()
    assert {moments["step"] for moments in after.state_dict()["state"].values()} == {5}


def common(**options: Any) -> Any:
    settings = {"bf16": True, "fp16_scale_window": 4, "fp16_no_flatten_grads": True}
    settings |= {"fp16_init_scale": 8, "fp16_scale_tolerance": 0.0, "threshold_loss_scale": None}
    return SimpleNamespace(**(settings | {"min_loss_scale": 1e-4} | options))


def half_run(
    wrapper: Any, name: str, dtype: torch.dtype
) -> tuple[list[Tensor], dict[str, Any], list[float]]:
    """Return weights, state and gradient norms after three half-precision updates."""
    params = weights(dtype)
    adam = config()
    adam._name = name
    cfg = SimpleNamespace(
        common=common(bf16=dtype is torch.bfloat16),
        optimizer=OmegaConf.structured(adam),
        optimization=SimpleNamespace(update_freq=[1]),
    )
    optimizer = wrapper.build_optimizer(cfg, params)
    norms = []
    for update in range(3):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(update)
        inputs = [torch.randn(p.shape, generator=generator).to(dtype) for p in params]
        optimizer.backward(sum((p * x).float().sum() for p, x in zip(params, inputs, strict=True)))
        optimizer.multiply_grads(0.5)
        norms.append(float(optimizer.clip_grad_norm(0.1)))
        optimizer.step()
    return [p.detach() for p in params], optimizer.state_dict(), norms


@pytest.mark.parametrize("wrapper", [FP16Optimizer, MemoryEfficientFP16Optimizer])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bucket", [20, fused_adam.BUCKET], ids=["several parts", "one part"])
def test_half_precision_equals_fairseqs(
    monkeypatch: pytest.MonkeyPatch, wrapper: Any, dtype: torch.dtype, bucket: int
) -> None:
    monkeypatch.setattr(fused_adam, "BUCKET", bucket)
    params, state, norms = half_run(wrapper, "fused_adam", dtype)
    expected, expected_state, expected_norms = half_run(wrapper, "adam", dtype)
    # float32 results near a rounding boundary may differ in the last half-precision bit
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(params, expected, rtol=eps, atol=0.01 * eps)
    assert_same(state["state"], expected_state["state"])
    assert norms == pytest.approx(expected_norms, rel=1e-6)
    assert all(v["exp_avg"].dtype == torch.float32 for v in state["state"].values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bound", [0.0, 0.5, 1e6])
def test_norm_and_clipped_gradients_equal_fairseqs(dtype: torch.dtype, bound: float) -> None:
    ours, theirs = weights(dtype), weights(dtype)
    for params in (ours, theirs):
        give_gradients(params, 3, skipped=1)
        params[0].expert = True  # scaled, but not counted
    optimizer = FairseqAdam(config(), ours)
    norm = optimizer.clip_grad_norm(bound, lambda x: x * 2)
    expected = utils.clip_grad_norm_(theirs, bound, lambda x: x * 2)
    torch.testing.assert_close(norm, expected, rtol=1e-6, atol=0)
    for p, q in zip(ours, theirs, strict=True):
        if p.grad is not None:
            clipped = (p.grad * optimizer._multiply_factor).to(dtype)
            torch.testing.assert_close(clipped, q.grad, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("bound", [0.0, 0.05])
def test_steps_with_scaled_and_clipped_gradients_equal_fairseqs(bound: float) -> None:
    both = []
    for build in (FairseqAdam, StockAdam):
        params = weights()
        optimizer = build(config(), params)
        for update in range(5):
            optimizer.zero_grad()
            give_gradients(params, update)
            optimizer.multiply_grads(torch.tensor(0.3) if update % 2 else 0.7)
            optimizer.clip_grad_norm(bound)
            optimizer.step()
        both.append((params, optimizer.state_dict()["state"]))
    assert_same([p.data for p in both[0][0]], [p.data for p in both[1][0]])
    assert_same(both[0][1], both[1][1])


def test_zero_grad_resets_the_pending_factor() -> None:
    params = weights()
    optimizer = FairseqAdam(config(), params)
    optimizer.multiply_grads(0.0)
    optimizer.zero_grad()
    give_gradients(params, 0)
    assert optimizer.clip_grad_norm(0.0) > 0


def test_sparse_gradients_are_an_error() -> None:
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = FairseqAdam(config(), list(table.parameters()))
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()


def test_loaded_moments_move_to_their_weights_device() -> None:
    """--memory-efficient-* loads a checkpoint's moments on the CPU."""
    weight = nn.Parameter(torch.ones(3, device="meta", dtype=torch.bfloat16))
    weight.grad = torch.ones_like(weight)
    optimizer = fused_adam.FusedAdam([weight], lr=0.1)
    moments = {"exp_avg": torch.zeros(3), "exp_avg_sq": torch.zeros(3)}
    optimizer.state[weight] = {"step": 1, **moments}
    optimizer.step()
    assert {optimizer.state[weight][name].device.type for name in moments} == {"meta"}
