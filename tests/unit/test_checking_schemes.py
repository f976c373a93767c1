"""New models of every scheme, which are as claimed and match no other scheme."""

from itertools import pairwise
from typing import Any

import pytest

from fairseq_deepnet.schemes import SCHEMES
from tests.support.checks import examine, facts, kinds, model_of, sentences
from tests.support.models import VARIANTS

STOCK = [name for name, scheme in SCHEMES.items() if scheme.stock_initialisation]
ONE_STACK = ("deepnet_transformer_lm", "deepnet_masked_lm")


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_a_new_model_of_every_scheme_and_variant_is_as_claimed(
    name: str, variant: str | None
) -> None:
    findings = examine(model_of(residual_scheme=name, scheme_variant=variant))
    assert findings.is_fine, sentences(findings)
    assert [side.layers for side in findings.sides] == [6, 4]
    assert all(item.fine for side in findings.sides for item in (*side.rows, *side.facts))


@pytest.mark.parametrize("name", STOCK)
def test_stock_initialisation_is_as_claimed_if_a_scheme_supports_it(name: str) -> None:
    findings = examine(model_of(residual_scheme=name, init="stock"))
    assert findings.is_fine, sentences(findings)


@pytest.mark.parametrize("arch", ONE_STACK)
@pytest.mark.parametrize("name", SCHEMES)
def test_single_stack_models_are_as_claimed(name: str, arch: str) -> None:
    findings = examine(model_of(arch, residual_scheme=name, max_positions=64))
    assert findings.is_fine, sentences(findings)
    assert len(findings.sides) == 1


@pytest.mark.parametrize(
    ("encoder", "decoder"), [(False, False), (True, True), (True, False), (False, True)]
)
def test_stock_fairseq_is_post_ln_or_pre_ln_with_its_own_initialisation(
    encoder: bool, decoder: bool
) -> None:
    before = {"encoder_normalize_before": encoder, "decoder_normalize_before": decoder}
    findings = examine(model_of("transformer", **before))
    assert findings.is_fine, sentences(findings)
    schemes = [f"{'pre-ln' if side else 'post-ln'}, stock init" for side in (encoder, decoder)]
    assert [side.scheme.removesuffix("ialisation") for side in findings.sides] == schemes


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
    findings = examine(model_of(**options))
    assert findings.is_fine, sentences(findings)


@pytest.mark.parametrize(("scheme", "claimed"), list(pairwise([*SCHEMES, "deepnorm"])))
def test_a_scheme_does_not_pass_as_another(scheme: str, claimed: str) -> None:
    findings = examine(model_of(residual_scheme=scheme), claim=claimed)
    assert not findings.is_fine
    assert kinds(findings) & {"weights", "residual", "inputs", "norms"}


def test_deepnorms_numbers_are_the_papers() -> None:
    """Fig. 2(b): 0.81 (N^4 M)^(1/16), 0.87 (N^4 M)^(-1/16), (3M)^(1/4), (12M)^(-1/4)."""
    findings = examine(model_of(encoder_layers=18, decoder_layers=18))
    encoder, decoder = findings.sides
    for side, alpha, beta in ((encoder, "1.999", "0.353"), (decoder, "2.711", "0.261")):
        measured = facts(side)
        assert measured["alpha"] == alpha
        assert side.facts[1].expected == beta
        assert measured["LayerNorm"] == "after the sum"
        assert measured["self_attn"] == measured["ffn"] == f"LN({alpha} x + G(x))"
