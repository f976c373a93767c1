"""Folding: a stock Transformer computes the same log-probabilities, or the scheme is refused."""

from __future__ import annotations

import math
from argparse import Namespace
from typing import Any

import fairseq.models
import pytest
import torch
from torch import Tensor

from fairseq_deepnet.schemes import Depths, Sublayer, scheme_class
from fairseq_deepnet.tools.export.folding import check_divisor, fold, foldable
from fairseq_deepnet.tools.export.stock import fold_model, stock_checkpoint
from fairseq_deepnet.tools.fairseq_options import quiet
from tests.support.models import VARIANTS
from tests.support.trained import task, trained

FOLDABLE = [(name, variant) for name, variant in VARIANTS if name in foldable()]
NOT_FOLDABLE = [name for name in dict(VARIANTS) if name not in foldable()]
EPS = 5e-5
"""Effect of LayerNorm's eps if the residual weight is a number (the docs promise 1e-4)."""
ROUNDING = 5e-6


def stock(state: dict[str, Any]) -> Any:
    """Return fairseq's own model with the folded weights."""
    folded, args = fold_model(state)
    with quiet():
        model = fairseq.models.build_model(args, task()).eval()
    model.load_state_dict(folded.weights)
    assert type(model).__module__.startswith("fairseq.models.")
    return model


@torch.no_grad()
def difference(ours: Any, folded: Any, **batch: Tensor) -> float:
    """Return the largest difference of log-probabilities, without padding."""
    pad = 1
    outputs = [model.get_normalized_probs(model(**batch), True) for model in (ours, folded)]
    real = next(batch[name] for name in ("prev_output_tokens", "src_tokens") if name in batch)
    return float((outputs[0] - outputs[1])[real.ne(pad)].abs().max())


@pytest.mark.parametrize(("name", "variant"), FOLDABLE)
def test_stock_layers_give_the_same_log_probabilities(
    name: str, variant: str | None, batch: dict[str, Tensor]
) -> None:
    depths = {"encoder_layers": 1, "decoder_layers": 4}
    ours, state = trained(residual_scheme=name, scheme_variant=variant, **depths)
    tolerance = ROUNDING if name in ("admin", "post-ln", "pre-ln") else EPS
    assert difference(ours, stock(state), **batch) < tolerance


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deepnorm", "admin", "admin-log", "pre-ln"])
def test_a_hundred_layers_per_side_give_the_same_log_probabilities(
    name: str, batch: dict[str, Tensor]
) -> None:
    ours, state = trained(residual_scheme=name, encoder_layers=100, decoder_layers=100)
    assert difference(ours, stock(state), **batch) < 1e-4


@pytest.mark.parametrize("name", ["deepnorm", "admin", "pre-ln"])
@pytest.mark.parametrize(
    "options",
    [
        {"share_all_embeddings": True},
        {"share_decoder_input_output_embed": True},
        {"encoder_learned_pos": True, "decoder_learned_pos": True},
        {"layernorm_embedding": True, "share_all_embeddings": True},
        {"no_token_positional_embeddings": True},
        {"no_scale_embedding": True},
        {"decoder_input_dim": 24, "decoder_output_dim": 24},
        {"decoder_embed_dim": 48, "decoder_output_dim": 48, "decoder_input_dim": 48},
        {"encoder_attention_heads": 2, "activation_fn": "gelu"},
    ],
    ids=lambda options: "+".join(f"{key}={value}" for key, value in options.items()),
)
def test_embeddings_and_shapes_do_not_affect_the_equality(
    name: str, options: dict[str, Any], batch: dict[str, Tensor]
) -> None:
    ours, state = trained(residual_scheme=name, **options)
    assert difference(ours, stock(state), **batch) < EPS


@pytest.mark.parametrize("name", NOT_FOLDABLE)
def test_a_scheme_without_equivalent_stock_layers_is_refused_with_the_reason(name: str) -> None:
    _, state = trained(residual_scheme=name)
    with pytest.raises(ValueError, match=f"--residual-scheme {name} cannot .*: .*schemes that can"):
        fold_model(state)


def test_other_models_and_files_without_options_are_refused() -> None:
    with pytest.raises(ValueError, match="a model of arch lstm cannot be exported"):
        fold_model({"cfg": {"model": {"arch": "lstm"}}})
    with pytest.raises(ValueError, match="contains no model options"):
        fold_model({})


@pytest.mark.parametrize("name", [*foldable(), "normformer"])
def test_a_language_model_folds_too(name: str, batch: dict[str, Tensor]) -> None:
    options = {"decoder_attention_heads": 4, "share_decoder_input_output_embed": True}
    if name == "normformer":
        options["scheme_variant"] = "resscale"
    ours, state = trained("deepnet_transformer_lm", residual_scheme=name, **options)
    tokens = batch["prev_output_tokens"]
    assert difference(ours, stock(state), src_tokens=tokens) < EPS


@pytest.mark.parametrize("name", foldable())
@pytest.mark.parametrize("normed", [True, False], ids=["embedding norm", "no embedding norm"])
def test_a_masked_language_model_folds_too(
    name: str, normed: bool, batch: dict[str, Tensor]
) -> None:
    options = {"max_positions": 20, "max_source_positions": 20, "encoder_learned_pos": normed}
    ours, state = trained(
        "deepnet_masked_lm", residual_scheme=name, layernorm_embedding=normed, **options
    )
    folded = stock(state)
    with torch.no_grad():
        gap = ours(batch["src_tokens"])[0] - folded(batch["src_tokens"])[0]
    assert gap.abs().max() < EPS


def test_the_recorded_alpha_is_folded(batch: dict[str, Tensor]) -> None:
    ours, state = trained()
    alphas = {"encoder": 3.0, "decoder": 4.0}
    state["cfg"]["model"].residual_record["alphas"] = alphas
    for side, alpha in alphas.items():
        for layer in getattr(ours, side).layers:
            for residual in layer.residuals.values():
                residual.alpha = alpha
    assert difference(ours, stock(state), **batch) < EPS


def test_a_shared_table_is_refused_if_the_sides_would_differ() -> None:
    _, state = trained(residual_scheme="admin")
    state["cfg"]["model"].merge_src_tgt_embed = True
    with pytest.raises(ValueError, match="--merge-src-tgt-embed ties the tables"):
        fold_model(state)


def test_half_precision_weights_are_divided_in_float32() -> None:
    _, state = trained()
    half = {name: weight.half() for name, weight in state["model"].items()}
    folded, _ = fold_model({**state, "model": half})
    name = "encoder.layers.0.fc2.weight"
    alpha = state["cfg"]["model"].residual_record["alphas"]["encoder"]
    assert torch.equal(folded.weights[name], half[name].float() * (1 / alpha))
    assert folded.weights["encoder.layers.0.fc1.weight"] is half["encoder.layers.0.fc1.weight"]


def test_a_stock_checkpoint_contains_none_of_our_names() -> None:
    _, state = trained()
    args = state["cfg"]["model"]
    args.criterion, args.optimizer = "chunked_label_smoothed_cross_entropy", "fused_adam"
    args.adam_eps = 1e-8
    state["cfg"] |= {
        "criterion": {"_name": "chunked_label_smoothed_cross_entropy", "label_smoothing": 0.1},
        "optimizer": {"_name": "fused_adam"},
        "common": {"user_dir": "somewhere/fairseq_deepnet"},
        "task": Namespace(_name="translation"),
    }
    config = stock_checkpoint(state)["cfg"]
    assert config["criterion"]["_name"] == "label_smoothed_cross_entropy"
    assert config["optimizer"]["_name"] == "adam"
    words = repr(config)
    for ours in ("deepnet", "chunked", "fused", "residual", "monitor", "scheme", "Namespace"):
        assert ours not in words


def test_only_the_eps_of_layer_norm_differs(batch: dict[str, Tensor]) -> None:
    ours, state = trained()
    folded = stock(state)
    for module in (*folded.modules(), *ours.modules()):
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 0.0
    assert difference(ours, folded, **batch) < ROUNDING


def test_only_the_last_map_of_every_branch_is_changed() -> None:
    _, state = trained()
    folded = fold(state["model"], state["cfg"]["model"], scheme_class("deepnorm")(Depths(3, 2)))
    exits = {Sublayer.SELF_ATTN: "self_attn.out_proj", Sublayer.FFN: "fc2"}
    exits[Sublayer.ENCODER_ATTN] = "encoder_attn.out_proj"
    changed = {
        name for name, weight in folded.weights.items() if weight is not state["model"].get(name)
    }
    expected = {
        f"{side}.layers.{layer}.{exits[sublayer]}.{part}"
        for side, layers in (("encoder", 3), ("decoder", 2))
        for layer in range(layers)
        for sublayer in Sublayer
        for part in ("weight", "bias")
        if side == "decoder" or sublayer is not Sublayer.ENCODER_ATTN
    }
    assert changed == expected


@pytest.mark.parametrize("weight", [0.0, math.nan, torch.tensor([1.0, math.nan])], ids=str)
def test_a_residual_weight_of_zero_or_nan_is_refused(weight: Any) -> None:
    with pytest.raises(ValueError, match=r"layers\.1\.ffn: the residual's weight is 0"):
        check_divisor(weight, "layers.1.ffn")
    check_divisor(-1.5, "layers.1.ffn")
