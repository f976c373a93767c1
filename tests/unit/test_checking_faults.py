"""Planted faults, which `deepnet check` must report, and nothing else.

Every model has one fault. Every test lists the kinds of faults to expect, so missing and additional
faults both fail.
"""

from typing import Any

import pytest
from torch import nn

from fairseq_deepnet.schemes import Side, gains
from tests.support.checks import (
    VALUE_PATH,
    M,
    N,
    examine,
    kinds,
    model_of,
    sentences,
    stock_layers_with,
)

GAINS = gains(N, M)
ENCODER, DECODER = GAINS[Side.ENCODER], GAINS[Side.DECODER]


def faults(model: Any, expected: set[str], claim: str | None = None) -> str:
    """Return the fault sentences, whose kinds must be these."""
    findings = examine(model, claim)
    assert kinds(findings) == expected, sentences(findings)
    return sentences(findings)


@pytest.mark.parametrize("factor", [1.0, ENCODER.beta])
def test_default_biases_and_scaled_biases_are_faults(factor: float) -> None:
    model = model_of()
    for layer in model.encoder.layers:
        nn.init.uniform_(layer.fc1.bias, -(64**-0.5), 64**-0.5)  # nn.Linear's default
        layer.fc1.bias.data.mul_(factor)
    text = faults(model, {"biases"})
    assert text.startswith("encoder biases of fc1: std up to 0.0")
    assert text.endswith(", expected 0.")


def test_alpha_under_pre_ln_and_alpha_on_the_branch() -> None:
    model = model_of()
    factors = {"encoder": (ENCODER.alpha, 1.0), "decoder": (DECODER.alpha, 1.0)}
    assert faults(stock_layers_with(model, factors), set(), claim="deepnorm") == ""
    text = faults(stock_layers_with(model, factors, pre=True), {"residual", "norms"}, "deepnorm")
    assert f"{ENCODER.alpha:.4g} x + G(LN(x)), expected LN({ENCODER.alpha:.4g} x + G(x))" in text
    assert f"{DECODER.alpha:.4g} x + G(LN(x)), expected LN({DECODER.alpha:.4g} x + G(x))" in text
    factors["encoder"] = (1.0, ENCODER.alpha)
    text = faults(stock_layers_with(model, factors), {"residual"}, claim="deepnorm")
    assert f"encoder self_attn, ffn: LN(x + {ENCODER.alpha:.4g} G(x))" in text


@pytest.mark.parametrize(
    ("side", "names", "factor"),
    [
        (Side.ENCODER, VALUE_PATH, 1.15 / 0.87),
        (Side.DECODER, VALUE_PATH, DECODER.beta**-2),
        (Side.DECODER, VALUE_PATH, DECODER.beta),
        (Side.ENCODER, ("q_proj", "k_proj"), ENCODER.beta),
    ],
    ids=["inverted constant", "inverted beta", "beta applied twice", "scaled queries and keys"],
)
def test_wrong_gains_are_faults(side: Side, names: tuple[str, ...], factor: float) -> None:
    model = model_of()
    for name, weight in getattr(model, side.value).layers.named_parameters():
        if name.endswith(tuple(f"{each}.weight" for each in names)):
            weight.data.mul_(factor)
    text = faults(model, {"weights"})
    due = GAINS[side].beta if names is VALUE_PATH else 1.0
    assert text.startswith(f"{side.value} self_attn.{names[0]}, self_attn.{names[1]}")
    assert f"gain {due * factor:.2g}" in text
    assert f"expected gain {due:.3g}." in text


@pytest.mark.parametrize(
    "alpha", [1.0, 1 / DECODER.alpha, (2 * M) ** 0.5, (2 * M) ** 0.25, ENCODER.alpha]
)
def test_wrong_alphas_are_faults(alpha: float) -> None:
    """Test alphas of 1, inverted, of GLM-130B, of a single decoder and of the encoder."""
    model = model_of()
    for layer in model.decoder.layers:
        for residual in layer.residuals.values():
            # the attribute remains correct
            residual.leave = lambda x, branch, norm, dropout: norm(alpha * x + dropout(branch))
    text = faults(model, {"residual"})
    alpha_text = "" if alpha == 1 else f"{alpha:.4g} "
    assert f"LN({alpha_text}x + G(x)), expected LN({DECODER.alpha:.4g} x + G(x))" in text


@pytest.mark.parametrize(
    ("variant", "claimed", "kind", "expected"),
    [
        ("paper", "alpha-only", "weights", "expected gain 1."),
        ("paper", "beta-only", "residual", "LN(1.861 x + G(x)), expected LN(x + G(x))."),
        ("alpha-only", "paper", "weights", "expected gain 0.38."),
        ("beta-only", "paper", "residual", "LN(x + G(x)), expected LN(1.861 x + G(x))."),
    ],
)
def test_alpha_only_and_beta_only_differ_from_deepnorm(
    variant: str, claimed: str, kind: str, expected: str
) -> None:
    model = model_of(scheme_variant=variant)
    model.args.scheme_variant = claimed
    del model.args.residual_record
    assert expected in faults(model, {kind})


def test_one_wrong_layer_is_named() -> None:
    model = model_of()
    model.encoder.layers[2].residuals["ffn"].alpha = 1.0
    model.encoder.layers[4].fc2.weight.data.mul_(2)
    text = faults(model, {"residual", "weights"})
    assert "encoder ffn in layer 2: LN(x + G(x))" in text
    assert "encoder fc2 in layer 4: gain" in text


def test_a_branch_without_its_multiplier_is_a_fault() -> None:
    text = sentences(examine(model_of(residual_scheme="t-fixup"), claim="rezero"))
    assert "encoder self_attn, ffn: x + G(x), expected x + 0 G(x)." in text


def test_a_model_without_arguments_needs_a_claim() -> None:
    model = model_of()
    del model.args
    assert examine(model, claim="deepnorm").is_fine
    with pytest.raises(ValueError, match=r"neither ours nor fairseq's .* --claim SCHEME"):
        examine(model)


def test_inputs_that_differ_from_the_claim_are_faults() -> None:
    text = sentences(examine(model_of(residual_scheme="pre-ln"), claim="dlcl"))
    assert "encoder layers: inputs are the output of the layer below, expected inputs" in text
    text = sentences(examine(model_of(residual_scheme="dlcl"), claim="pre-ln"))
    assert "decoder layers: inputs are a combination of all outputs below, expected" in text


def test_a_missing_final_layer_norm_is_a_fault() -> None:
    model = model_of(residual_scheme="pre-ln")
    model.encoder.layer_norm = None
    assert "encoder output: no LayerNorm after the stack" in faults(model, {"norms"})


def test_parameters_must_be_finite() -> None:
    model = model_of()
    model.decoder.layers[1].fc1.weight.data[3, 4] = float("nan")
    with pytest.raises(ValueError, match=r"decoder.layers.1.fc1.weight: 1 of 8192 numbers"):
        examine(model)
