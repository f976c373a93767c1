"""Distribution and gradients of dropout with 16 random bits per element."""

import math

import pytest
import torch

from fairseq_deepnet.modules.dropout import Dropout


def dropping(p: float) -> Dropout:
    return Dropout(p).train()


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_elements_are_dropped_with_probability_p(p: float) -> None:
    elements = 400_000
    torch.manual_seed(1)
    dropped = int((dropping(p)(torch.ones(elements)) == 0).sum())
    deviation = math.sqrt(elements * p * (1 - p))
    assert abs(dropped - elements * p) < 5 * deviation


def test_remaining_elements_are_scaled_to_preserve_the_mean() -> None:
    torch.manual_seed(1)
    y = dropping(0.1)(torch.ones(1000, 64))
    kept_values = y[y != 0]
    keep = round(0.9 * 65536) / 65536
    assert torch.allclose(kept_values, torch.full_like(kept_values, 1 / keep))
    assert y.mean() == pytest.approx(1, abs=0.01)


def test_only_remaining_elements_have_gradients() -> None:
    x = torch.randn(3, 5, 7, requires_grad=True)
    y = dropping(0.4)(x)
    weight = torch.randn_like(y)
    (y * weight).sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, torch.where(y == 0, 0.0, weight * y / x).detach(), atol=1e-6)
    assert 0 < int((y == 0).sum()) < y.numel()


def test_one_seed_draws_one_mask() -> None:
    masks = []
    for _ in range(2):
        torch.manual_seed(7)
        masks.append(dropping(0.5)(torch.ones(100)))
    assert torch.equal(*masks)
    assert not torch.equal(masks[0], dropping(0.5)(torch.ones(100)))


@pytest.mark.parametrize(("p", "value"), [(1e-9, 1.0), (1.0, 0.0)])
def test_extreme_probabilities_drop_no_or_all_elements(p: float, value: float) -> None:
    assert torch.equal(dropping(p)(torch.ones(50)), torch.full((50,), value))


def test_nothing_is_dropped_at_inference_unless_dropout_is_retained() -> None:
    module = Dropout(0.5, module_name="TransformerEncoderLayer").eval()
    x = torch.ones(100)
    assert module(x) is x
    module.make_generation_fast_("encoder", retain_dropout=True)
    assert (module(x) == 0).any()
