"""Invariance of outputs to padding, batching and generation."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.models import VARIANTS, build_model, matrix, stir

Batch = dict[str, Tensor]
TOLERANCE = {"atol": 2e-5, "rtol": 1e-5}


@pytest.fixture(params=matrix(VARIANTS, whole=True), ids=lambda v: "-".join(filter(None, v)))
def model(request: pytest.FixtureRequest) -> Any:
    """Return a model with nonzero branches; ReZero's and R-Fixup's are initially 0."""
    scheme, variant = request.param
    model = build_model(residual_scheme=scheme, scheme_variant=variant)
    stir(model)
    return model.eval()


def log_probs(model: Any, batch: Batch) -> Tensor:
    return model.get_normalized_probs(model(**batch), log_probs=True)


def alone(batch: Batch, row: int) -> Batch:
    """Return one sentence pair without its padding."""
    source, target = batch["src_tokens"][row], batch["prev_output_tokens"][row]
    source, target = source[source.ne(1)][None], target[target.ne(1)][None]
    length = torch.tensor([source.size(1)])
    return {"src_tokens": source, "src_lengths": length, "prev_output_tokens": target}


def test_a_sentence_does_not_depend_on_padding_and_other_sentences(
    model: Any, batch: Batch
) -> None:
    together = log_probs(model, batch)
    for row in range(3):
        by_itself = log_probs(model, alone(batch, row))[0]
        torch.testing.assert_close(together[row, : len(by_itself)], by_itself, **TOLERANCE)


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_the_encoder_has_the_same_output_in_generation_as_in_training(
    model: Any, batch: Batch, side: str
) -> None:
    tokens = batch["src_tokens"]
    if side == "right":
        tokens = torch.stack([torch.cat([s[s.ne(1)], s[s.eq(1)]]) for s in tokens])
    before = model.encoder(tokens, batch["src_lengths"])["encoder_out"][0].transpose(0, 1)
    model.make_generation_fast_()
    actual = model.encoder(tokens, batch["src_lengths"])["encoder_out"][0].transpose(0, 1)
    real = tokens.ne(1)
    torch.testing.assert_close(actual[real], before[real], **TOLERANCE)
    assert torch.isfinite(actual).all()


def test_target_padding_on_the_left_changes_no_output(model: Any, batch: Batch) -> None:
    right = batch["prev_output_tokens"]
    padded_left = torch.stack([torch.cat([t[t.eq(1)], t[t.ne(1)]]) for t in right])
    actual = log_probs(model, batch | {"prev_output_tokens": padded_left})
    assert torch.isfinite(actual).all()
    torch.testing.assert_close(
        actual[padded_left.ne(1)], log_probs(model, batch)[right.ne(1)], **TOLERANCE
    )
