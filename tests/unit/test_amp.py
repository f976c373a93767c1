"""--amp: fairseq's AMPOptimizer around adam and ours, with torch's scaler for CPUs."""

from __future__ import annotations

import math

import pytest
import torch
from fairseq.optim import OPTIMIZER_REGISTRY
from fairseq.optim.amp_optimizer import AMPOptimizer
from omegaconf import OmegaConf
from torch import Tensor

pytestmark = pytest.mark.filterwarnings("ignore:torch.cuda.amp.GradScaler is enabled")

SLOPES = torch.tensor([1e-3, 2e-3])


def train(name: str, scale: float, overflow: float | None = None) -> Tensor:
    """Two weights after three tries in fairseq's order, the second of which may overflow."""
    weights = torch.nn.Parameter(torch.zeros(2))
    settings = {"lr": [0.1], "adam_betas": "(0.9, 0.98)", "adam_eps": 1e-3, "weight_decay": 0.0}
    switches = {"use_old_adam": name == "adam", "tpu": False, "fp16_adam_stats": False}
    cfg = OmegaConf.create(
        {
            "common": {"fp16_init_scale": scale, "min_loss_scale": 1e-4},
            "optimizer": {"_name": name, **settings, **switches},
        }
    )
    amp = AMPOptimizer(cfg, [weights], OPTIMIZER_REGISTRY[name](cfg.optimizer, [weights]))
    amp._grad_scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    for attempt in range(3):
        amp.zero_grad()
        amp.backward((weights * SLOPES).sum())
        if overflow is not None and attempt == 1:
            assert weights.grad is not None
            weights.grad[0] = overflow
        amp.multiply_grads(0.5)
        amp.clip_grad_norm(1e-3)
        amp.step()
    return weights.detach()


@pytest.mark.parametrize("name", ["adam", "fused_adam"])
def test_updates_do_not_depend_on_the_loss_scale(name: str) -> None:
    """Adam's epsilon shows gradients that were divided twice."""
    expected = train(name, 1.0)
    assert expected.abs().min() > 0.01
    torch.testing.assert_close(train(name, 1024.0), expected)


@pytest.mark.parametrize("overflow", [math.inf, math.nan])
def test_an_overflow_leaves_one_step_out_and_nothing_behind(overflow: float) -> None:
    adam, fused = (train(name, 1024.0, overflow) for name in ("adam", "fused_adam"))
    assert adam.isfinite().all()
    torch.testing.assert_close(fused, adam)
