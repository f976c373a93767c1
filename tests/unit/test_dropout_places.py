"""Places of dropout, against stock fairseq and each scheme's formula.

Dropout is deterministic here: each dropout, whether ours, fairseq's or torch's, multiplies channel
i (or key i of attention weights) by a fixed factor, so that two computations can be compared.
"""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor

from fairseq_deepnet.modules.dropout import Dropout
from tests.support import reference
from tests.support.models import VARIANTS, assert_same_training, build_model, loss_of, matrix

Batch = dict[str, Tensor]
EACH: list[dict[str, float]] = [
    {"dropout": 0.4},
    {"attention_dropout": 0.4},
    {"activation_dropout": 0.4},
    {"relu_dropout": 0.4},  # activation_dropout in old configurations
    {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3},
]


def dropped(x: Tensor, p: float) -> Tensor:
    """Multiply every third element of the last dimension by 0 and the others by 1 / (1 - p)."""
    places = torch.arange(x.size(-1), device=x.device)
    return x * (places % 3 != 1) / (1 - p)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
) -> Tensor:
    """Compute torch's scaled_dot_product_attention with deterministic dropout."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.size(-1))
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = scores.softmax(dim=-1)
    return (dropped(weights, dropout_p) if dropout_p else weights) @ value


@pytest.fixture(autouse=True)
def fixed_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Any, x: Tensor, inplace: bool = False) -> Tensor:
        drops = self.p > 0 and (self.training or self.apply_during_inference)
        return dropped(x, self.p) if drops else x

    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return dropped(x, p) if p and training else x

    monkeypatch.setattr(FairseqDropout, "forward", forward)
    monkeypatch.setattr(Dropout, "forward", forward)
    monkeypatch.setattr(F, "dropout", dropout)
    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)


def assert_alike(ours: Any, stock: Any, batch: Batch) -> None:
    """Compare loss and gradients in training, and logits in evaluation, without dropout."""
    loss = assert_same_training(ours, stock, lambda model: loss_of(model.train(), batch))
    real = batch["prev_output_tokens"].ne(1)
    actual, expected = (model.eval()(**batch)[0][real] for model in (ours, stock))
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    assert abs(loss_of(ours, batch) - loss) > 1e-3  # nothing is dropped


@pytest.mark.parametrize("options", EACH, ids=str)
@pytest.mark.parametrize("scheme", ["post-ln", "pre-ln"])
def test_dropout_is_in_the_same_places_as_in_stock_fairseq(
    scheme: str, options: dict[str, float], batch: Batch
) -> None:
    pre = {f"{side}_normalize_before": scheme == "pre-ln" for side in ("encoder", "decoder")}
    chosen = {"dropout": 0.0} | options
    stock = build_model("transformer", **pre, **chosen)
    ours = build_model(residual_scheme=scheme, init="stock", seed=2, **chosen)
    ours.load_state_dict(stock.state_dict())
    assert_alike(ours, stock, batch)


@pytest.mark.parametrize("options", EACH[:3], ids=str)
@pytest.mark.parametrize(("scheme", "variant"), matrix(VARIANTS))
@torch.no_grad()
def test_dropout_is_where_the_schemes_formula_has_it(
    scheme: str, variant: str | None, options: dict[str, float], batch: Batch
) -> None:
    """NormFormer normalises its branch before dropout, but fc1's output after dropout."""
    chosen = {"dropout": 0.0} | options
    model = build_model(residual_scheme=scheme, scheme_variant=variant, **chosen)
    generator = torch.Generator().manual_seed(9)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dtype.is_floating_point:
            tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator))
    model.train()
    places = reference.Dropped(
        *(
            (lambda y, p=p: dropped(y, p)) if (p := chosen.get(name)) else torch.clone
            for name in ("dropout", "attention_dropout", "activation_dropout")
        )
    )
    real = batch["prev_output_tokens"].ne(1)
    actual, expected = model(**batch)[0], reference.logits(scheme, model, batch, places)
    torch.testing.assert_close(actual[real], expected[real], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(actual[real], model.eval()(**batch)[0][real], atol=1e-3)
