"""Named architectures, rejected options, and the scheme recorded in checkpoints."""

from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.modules import layer_norm
from torch import Tensor

from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.models import DeepNetTransformerModel
from fairseq_deepnet.models.options import UNSUPPORTED
from fairseq_deepnet.schemes import Side, gains
from tests.support.models import build_model

# arch: width, feed-forward width, heads, layers per side. Paper, Tables 2 to 8 and Fig. 5.
SHAPES = {
    "deepnet_transformer": (512, 2048, 8, 6),
    "deepnet_transformer_tiny": (64, 128, 2, 6),
    "deepnet_transformer_iwslt_de_en": (512, 2048, 8, 6),
    "deepnet_transformer_wmt_en_de": (512, 2048, 8, 6),
    "deepnet_transformer_wmt_en_de_768": (768, 3072, 12, 6),
    "deepnet_transformer_wmt_en_de_1024": (1024, 4096, 16, 6),
    "deepnet_transformer_opus100_12": (512, 2048, 8, 6),
    "deepnet_transformer_opus100_20": (512, 2048, 8, 10),
    "deepnet_transformer_opus100_100": (512, 2048, 8, 50),
    "deepnet_transformer_opus100_200": (512, 2048, 8, 100),
    "deepnet_transformer_opus100_1000": (512, 2048, 8, 500),
    "deepnet_transformer_mm102": (1024, 4096, 16, 100),
}


def test_every_registered_arch_is_in_the_table() -> None:
    registered = ARCH_MODEL_REGISTRY.items()
    ours = {name for name, model in registered if model is DeepNetTransformerModel}
    assert ours == set(SHAPES)


@pytest.mark.parametrize("arch", SHAPES)
def test_an_arch_has_the_shape_of_the_paper_unless_the_user_sets_another(arch: str) -> None:
    args = Namespace()
    ARCH_CONFIG_REGISTRY[arch](args)
    sizes = ("embed_dim", "ffn_embed_dim", "attention_heads", "layers")
    for side in ("encoder", "decoder"):
        assert tuple(getattr(args, f"{side}_{size}") for size in sizes) == SHAPES[arch]
    assert args.residual_scheme == "deepnorm"
    options: dict[str, Any] = {"encoder_layers": 9, "decoder_embed_dim": 48, "dropout": 0.0}
    options |= {"decoder_attention_heads": 4, "residual_scheme": "pre-ln"}
    args = Namespace(**options)
    ARCH_CONFIG_REGISTRY[arch](args)
    assert options.items() <= vars(args).items()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"residual_scheme": "deepnrom"}, "deepnrom is unknown; choose one of deepnorm"),
    ({"encoder_normalize_before": True}, "--encoder-normalize-before contradicts .* deepnorm"),
    ({"decoder_normalize_before": True}, "--decoder-normalize-before contradicts .* deepnorm"),
    ({"decoder_attention_heads": 5}, "--decoder-attention-heads 5 does not divide .* 32"),
    ({"encoder_attention_heads": 0}, "--encoder-attention-heads 0: must be at least 1"),
    ({"decoder_embed_dim": -32}, "--decoder-embed-dim -32: must be at least 1"),
    ({"encoder_ffn_embed_dim": 0}, "--encoder-ffn-embed-dim 0: must be at least 1"),
    ({"decoder_layers": -2}, "--decoder-layers -2"),
    ({"init": "stock"}, "--init stock contradicts --residual-scheme deepnorm"),
    ({"varlen_attention": True, "attention_dropout": 0.1}, "contradicts --attention-dropout"),
    ({"residual_dtype": "half"}, "--residual-dtype half is unknown; choose auto"),
    ({"init": "zero"}, "--init zero is unknown; choose scheme or stock"),
    ({"no_decoder_final_norm": True}, "--no-decoder-final-norm .* deepnorm, which is not Pre-LN"),
    ({"freeze_norms": "gains"}, "--freeze-norms gains is unknown; choose none, inner or both"),
    (
        {"freeze_norms": "inner", "residual_scheme": "t-fixup"},
        "--freeze-norms has no effect .* t-f",
    ),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=lambda v: "".join(v)[:40])
def test_an_unsupported_option_is_an_error_that_names_it(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        build_model(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["deepnorm", "pre-ln"])
@pytest.mark.parametrize("frozen", ["none", "inner", "both"])
def test_only_the_layers_norms_are_frozen(frozen: str, scheme: str) -> None:
    model = build_model(residual_scheme=scheme, freeze_norms=frozen, layernorm_embedding=True)
    frozen_names = {name for name, p in model.named_parameters() if not p.requires_grad}
    # one norm per branch: two in an encoder layer, three in a decoder layer
    names = [("encoder", "self_attn"), ("encoder", "final")]
    names += [("decoder", "self_attn"), ("decoder", "encoder_attn"), ("decoder", "final")]
    # Pre-LN's last LayerNorm is outside the layers
    last = [("encoder", "final", 2), ("decoder", "final", 1)] if scheme == "deepnorm" else []
    assert frozen_names == {
        f"{side}.layers.{layer}.{norm}_layer_norm.{kind}"
        for side, norm in names
        for layer in range(len(getattr(model, side).layers))
        for kind in ("weight", "bias")
        if frozen == "both" or (frozen == "inner" and (side, norm, layer) not in last)
    }


@pytest.mark.parametrize("scheme", ["deepnorm", "pre-ln", "peri-ln"])
def test_apex_replaces_none_of_our_norms(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fused(torch.nn.Module):
        """Fused LayerNorm like apex's, which is not a torch.nn.LayerNorm."""

        def __init__(self, size: int, *_: object) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(size))

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(layer_norm, "has_fused_layernorm", True)
    monkeypatch.setattr(layer_norm, "FusedLayerNorm", Fused, raising=False)
    model = build_model(
        residual_scheme=scheme, freeze_norms="both", layernorm_embedding=scheme == "deepnorm"
    )
    assert not any(isinstance(module, Fused) for module in model.modules())
    assert not model.decoder.layers[0].final_layer_norm.weight.requires_grad


@pytest.mark.parametrize(("attribute", "neutral"), UNSUPPORTED.items(), ids=UNSUPPORTED)
def test_stock_options_that_our_layers_lack_are_errors(
    attribute: str, neutral: tuple[Any, ...]
) -> None:
    option = attribute.replace("_", "-")
    with pytest.raises(ConfigurationError, match=f"^--{option} 1 is not supported"):
        build_model(**{attribute: 1})
    for value in neutral:
        build_model(**{attribute: value})


def test_pre_ln_flags_agree_with_pre_ln() -> None:
    flags = {"encoder_normalize_before": True, "decoder_normalize_before": True}
    model = build_model(residual_scheme="pre-ln", **flags)
    assert model.encoder.layer_norm is not None
    assert model.decoder.layer_norm is not None
    bare = build_model(residual_scheme="pre-ln", no_decoder_final_norm=True)
    assert bare.decoder.layer_norm is None


def test_pruning_layers_keeps_the_alpha_of_the_trained_depth() -> None:
    trained_alphas = [gains(6, 4)[side].alpha for side in Side]
    whole = build_model(encoder_layers=6, decoder_layers=4)
    record = whole.args.residual_record
    alphas = dict(zip(("encoder", "decoder"), trained_alphas, strict=True))
    assert record == {
        **{"scheme": "deepnorm", "depths": [6, 4], "alphas": alphas},
        "variant": "paper",
    }
    recorded = {"residual_record": record}
    pruning = {"encoder_layers": 6, "decoder_layers": 4, "encoder_layers_to_keep": "0,3"}
    for options in (
        pruning,
        pruning | recorded,
        recorded | {"encoder_layers": 2, "decoder_layers": 4},
    ):
        pruned = build_model(**options)
        assert len(pruned.encoder.layers) == 2
        assert pruned.encoder.layers[1].residuals["ffn"].alpha == trained_alphas[0]
        assert pruned.decoder.layers[1].residuals["ffn"].alpha == trained_alphas[1]
        assert pruned.args.residual_record == record


def test_another_scheme_than_the_checkpoints_is_an_error() -> None:
    for record in (build_model().args.residual_record, None):
        with pytest.raises(ConfigurationError, match="post-ln contradicts the checkpoint"):
            build_model(residual_scheme="post-ln", residual_record=record)


def test_dropout_is_retained_by_fairseqs_names(batch: dict[str, Tensor]) -> None:
    names = ["MultiheadAttention", "TransformerEncoderLayer", "TransformerDecoder"]
    model = build_model(dropout=0.3, attention_dropout=0.5).eval()
    assert torch.equal(model(**batch)[0], model(**batch)[0])
    model.make_generation_fast_(retain_dropout=True, retain_dropout_modules=names)
    assert not torch.equal(model(**batch)[0], model(**batch)[0])
    assert model.encoder.layers[0].self_attn.dropout_probability() == 0.5
    assert model.encoder.layers[0].dropout_module.apply_during_inference
    assert model.decoder.dropout_module.apply_during_inference
    assert not model.decoder.layers[0].dropout_module.apply_during_inference
