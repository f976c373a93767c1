"""Every scheme's fresh model is found to be what it is, and nothing else."""

from itertools import pairwise
from typing import Any

import pytest

from fairseq_deepnet.schemes import SCHEMES
from tests.support.checks import examine, facts, kinds, model_of, sentences
from tests.support.models import VARIANTS

STOCK = [name for name, scheme in SCHEMES.items() if scheme.stock_initialisation]
ONE_STACK = ("deepnet_transformer_lm", "deepnet_masked_lm")


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_a_fresh_model_of_every_scheme_and_variant_is_as_claimed(
    name: str, variant: str | None
) -> None:
    found = examine(model_of(residual_scheme=name, scheme_variant=variant))
    assert found.is_fine, sentences(found)
    assert [side.layers for side in found.sides] == [6, 4]
    assert all(row.fine is not False for side in found.sides for row in side.rows)


@pytest.mark.parametrize("name", STOCK)
def test_stock_initialisation_is_as_claimed_where_a_scheme_takes_it(name: str) -> None:
    found = examine(model_of(residual_scheme=name, init="stock"))
    assert found.is_fine, sentences(found)


@pytest.mark.parametrize("arch", ONE_STACK)
@pytest.mark.parametrize("name", SCHEMES)
def test_models_of_one_stack_are_as_claimed(name: str, arch: str) -> None:
    found = examine(model_of(arch, residual_scheme=name, max_positions=64))
    assert found.is_fine, sentences(found)
    assert len(found.sides) == 1


@pytest.mark.parametrize(
    ("encoder", "decoder"), [(False, False), (True, True), (True, False), (False, True)]
)
def test_stock_fairseq_is_post_ln_or_pre_ln_with_its_own_initialisation(
    encoder: bool, decoder: bool
) -> None:
    before = {"encoder_normalize_before": encoder, "decoder_normalize_before": decoder}
    found = examine(model_of("transformer", **before))
    assert found.is_fine, sentences(found)
    schemes = ["pre-ln" if side else "post-ln" for side in (encoder, decoder)]
    assert [side.scheme for side in found.sides] == [f"{s}, stock initialisation" for s in schemes]


@pytest.mark.parametrize(
    "options",
    [
        {"encoder_embed_dim": 32, "encoder_learned_pos": True},
        {"residual_scheme": "pre-ln", "no_decoder_final_norm": True},
        {"residual_scheme": "post-ln", "init": "stock", "encoder_embed_dim": 32},
        {"layernorm_embedding": True, "encoder_layerdrop": 0.2, "dropout": 0.3},
    ],
    ids=str,
)
def test_other_shapes_are_as_claimed(options: dict[str, Any]) -> None:
    found = examine(model_of(**options))
    assert found.is_fine, sentences(found)


@pytest.mark.parametrize(("is_really", "claimed"), list(pairwise([*SCHEMES, "deepnorm"])))
def test_a_scheme_is_not_taken_for_another(is_really: str, claimed: str) -> None:
    found = examine(model_of(residual_scheme=is_really), claim=claimed)
    assert not found.is_fine
    assert kinds(found) & {"weights", "residual", "inputs", "norms"}


def test_what_is_printed_of_deepnorm_are_the_papers_numbers() -> None:
    """Fig. 2(b): 0.81 (N^4 M)^(1/16), 0.87 (N^4 M)^(-1/16), (3M)^(1/4), (12M)^(-1/4)."""
    found = examine(model_of(encoder_layers=18, decoder_layers=18))
    encoder, decoder = found.sides
    for side, alpha, beta in ((encoder, "1.999", "0.353"), (decoder, "2.711", "0.261")):
        measured = facts(side)
        assert measured["alpha"] == alpha
        assert side.facts[1].expected == beta
        assert measured["LayerNorm"] == "after the sum"
        assert measured["self_attn"] == measured["ffn"] == f"LN({alpha} x + G(x))"
