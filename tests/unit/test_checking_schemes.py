"""New models of every scheme, which are as claimed and match no other scheme."""

from itertools import pairwise, product
from typing import Any

import pytest

from fairseq_deepnet.schemes import SCHEMES
from tests.support.checks import examine, kinds, model_of, sentences
from tests.support.models import VARIANTS

OURS = "deepnet_transformer"
ONE_STACK = ("deepnet_transformer_lm", "deepnet_masked_lm")
STOCK = [name for name, scheme in SCHEMES.items() if scheme.stock_initialisation]
MODELS: list[tuple[str, dict[str, Any]]] = [
    *((OURS, {"residual_scheme": name, "scheme_variant": variant}) for name, variant in VARIANTS),
    *((OURS, {"residual_scheme": name, "init": "stock"}) for name in STOCK),
    *(
        (arch, {"residual_scheme": s, "max_positions": 64})
        for arch, s in product(ONE_STACK, SCHEMES)
    ),
    (OURS, {"encoder_embed_dim": 32, "encoder_learned_pos": True}),
    (OURS, {"residual_scheme": "pre-ln", "no_decoder_final_norm": True}),
    (OURS, {"residual_scheme": "post-ln", "init": "stock", "encoder_embed_dim": 32}),
    (OURS, {"layernorm_embedding": True, "encoder_layerdrop": 0.2, "dropout": 0.3}),
    ("deepnet_masked_lm", {"encoder_layerdrop": 0.9, "max_positions": 64}),
]


@pytest.mark.parametrize(("arch", "options"), MODELS, ids=str)
def test_a_new_model_is_as_claimed(arch: str, options: dict[str, Any]) -> None:
    findings = examine(model_of(arch, **options))
    assert findings.is_fine, sentences(findings)
    assert [side.layers for side in findings.sides] in ([6, 4], [6], [4])
    assert all(item.fine for side in findings.sides for item in (*side.rows, *side.facts))


@pytest.mark.parametrize(("encoder", "decoder"), list(product((False, True), repeat=2)))
def test_stock_fairseq_is_post_ln_or_pre_ln_with_its_own_initialisation(
    encoder: bool, decoder: bool
) -> None:
    before = {"encoder_normalize_before": encoder, "decoder_normalize_before": decoder}
    findings = examine(model_of("transformer", **before))
    assert findings.is_fine, sentences(findings)
    schemes = [f"{'pre-ln' if side else 'post-ln'}, stock init" for side in (encoder, decoder)]
    assert [side.scheme.removesuffix("ialisation") for side in findings.sides] == schemes


@pytest.mark.parametrize(("scheme", "claimed"), list(pairwise([*SCHEMES, "deepnorm"])))
def test_a_scheme_does_not_pass_as_another(scheme: str, claimed: str) -> None:
    findings = examine(model_of(residual_scheme=scheme), claim=claimed)
    assert kinds(findings) & {"weights", "residual", "inputs", "norms"}
