"""`check` in Python on correct and wrong models of other projects."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fairseq_deepnet.tools.checking import check
from fairseq_deepnet.tools.checking.findings import Findings
from fairseq_deepnet.tools.checking.layouts import LAYOUTS, find_layers
from tests.support.checks import facts, kinds, sentences
from tests.support.public_like import (
    DEPTH,
    TOKENS,
    WIDTH,
    LlamaLike,
    correct,
    inverted_gain,
    value_path,
)

LLAMA = {"input_ids": TOKENS}


def fine(findings: Findings) -> bool:
    assert findings.is_fine, sentences(findings)
    return True


def test_the_papers_deepnorm_in_llamas_layers_passes() -> None:
    model = correct()
    before = copy.deepcopy(model.state_dict())
    findings = check(model, LLAMA, claims="deepnorm")
    assert fine(findings)
    assert model.training
    assert all(
        torch.equal(a, b) for a, b in zip(model.state_dict().values(), before.values(), strict=True)
    )
    (side,) = findings.sides
    assert facts(side)["alpha"] == f"{(2 * DEPTH) ** 0.25:.4g}"
    assert "LayerNorm after the stack                  yes                 no (not" in str(findings)
    assert [row.name for row in side.rows] == [
        *(f"self_attn.{role}_proj" for role in ("q", "k", "v", "out")),
        *("fc1 gate_proj", "fc1 up_proj", "fc2"),
    ]


@pytest.mark.parametrize(("alpha", "right_at"), [(64**0.25, 32), (2.632, 24)])
def test_an_inverted_gain_and_an_alpha_for_one_depth_are_faults(
    alpha: float, right_at: int
) -> None:
    """Check two public repositories at 12 layers, where alpha is wrong, and at alpha's depth."""
    findings = check(inverted_gain(alpha), LLAMA)
    assert kinds(findings) == {"weights", "residual"}
    text = sentences(findings)
    assert "gain 3.1" in text  # 96^(1/4)
    assert f"expected gain {96**-0.25:.3g}." in text
    assert f"LN({alpha:.4g} x + G(x)), expected LN(2.213 x + G(x))" in text
    if alpha == 64**0.25:
        assert kinds(check(inverted_gain(alpha, right_at), LLAMA)) == {"weights"}


def test_pre_ln_differs_from_post_ln_under_any_name_of_the_norms() -> None:
    model = LlamaLike(4, value_path(32**-0.25), place="pre")
    findings = check(model, LLAMA)
    assert kinds(findings) == {"residual"}
    assert "x + G(LN(x)), expected LN(1.682 x + G(x))" in sentences(findings)
    assert facts(findings.sides[0])["LayerNorm"] == "before the branch"
    assert fine(check(LlamaLike(4, value_path(1.0), place="pre"), LLAMA, claims="pre-ln"))
    scaled = LlamaLike(4, value_path(1.0), place="pre", scaled=True)
    assert fine(check(scaled, LLAMA, claims="ln-scaling"))
    assert "x + G(0.5..0.7071 LN(x)), expected x + G(LN(x))" in sentences(
        check(scaled, LLAMA, claims="pre-ln")
    )


def test_a_norm_inside_the_branch_is_a_fault_even_if_the_branch_counts_nothing_yet() -> None:
    findings = check(LlamaLike(4, value_path(1.0), place="inside"), LLAMA, claims="rezero")
    assert kinds(findings) == {"residual"}, sentences(findings)
    assert facts(findings.sides[0])["LayerNorm"] == "in another place"


def test_scaled_outputs_of_norms_are_faults_in_a_new_model() -> None:
    model = correct()
    for layer in model.layers:
        nn.init.constant_(layer.first_norm.weight, 0.5)
    findings = check(model, LLAMA)
    assert kinds(findings) == {"norms"}, sentences(findings)
    assert "decoder LayerNorms: outputs of RMS 0.5..1, expected 1." in sentences(findings)
    assert fine(check(model, LLAMA, trained=True))
    model = correct()
    for layer in model.layers:
        layer.register_forward_hook(lambda _, args, output: (0.5 * output[0],))
    assert kinds(check(model, LLAMA)) == {"norms"}


def test_a_mapping_defines_other_names() -> None:
    with pytest.raises(ValueError, match=r"Linear has no list of layers .* layers="):
        check(nn.Linear(2, 2), torch.randn(1, 2))
    names = LAYOUTS["LLaMA"]
    assert fine(check(correct(), LLAMA, layers=names))
    for ffn in ({**names["ffn"], "fc2": "nothing"}, {**names["ffn"], "branch": "nothing"}, {}):
        with pytest.raises(ValueError, match="LlamaLike has no list of layers"):
            check(correct(), LLAMA, layers={**names, "ffn": ffn})
    with pytest.raises(ValueError, match="no sublayer 'cross_attn'"):
        check(correct(), LLAMA, layers={**names, "cross_attn": names["self_attn"]})


def test_sides_with_different_names_are_both_found() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 4, 96, batch_first=True), 3)
    stacks = find_layers(nn.ModuleDict({"encoder": encoder, "decoder": correct()}))
    assert [len(stack.layers) for stack in stacks] == [3, DEPTH]
    for layer in encoder.layers:
        layer.other = layer._modules.pop("linear1")
    with pytest.raises(ValueError, match=r"^encoder\.layers: layers with unknown names"):
        find_layers(nn.ModuleDict({"encoder": encoder, "decoder": correct()}))


@pytest.mark.parametrize("first", [False, True])
def test_both_sides_of_torchs_transformer_are_measured(first: bool) -> None:
    torch.manual_seed(2)
    model = nn.Transformer(WIDTH, 4, 3, 2, 96, batch_first=True, norm_first=first)
    batch = (torch.randn(4, 11, WIDTH), torch.randn(4, 9, WIDTH))
    findings = check(model, batch, claims="pre-ln" if first else "post-ln")
    assert [len(side.facts) for side in findings.sides] == [6, 7]
    place = "before the branch" if first else "after the sum"
    assert {facts(side)["LayerNorm"] for side in findings.sides} == {place}
    assert {facts(side)["LayerNorm after the stack"] for side in findings.sides} == {"yes"}
    # q, k and v are drawn as one Xavier matrix; fc1's biases are nn.Linear's
    assert kinds(findings) == {"weights", "biases"}
    assert "self_attn.q_proj, self_attn.k_proj, self_attn.v_proj" in sentences(findings)


def test_zero_weights_hide_nothing() -> None:
    model = inverted_gain(24**0.25)
    for layer in model.layers:
        nn.init.zeros_(layer.self_attn.o_proj.weight)
    findings = check(model, LLAMA)
    assert kinds(findings) == {"weights"}, sentences(findings)
