"""`check` in Python: models of other houses, right and wrong, by their names or a mapping."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_deepnet.schemes import Side, gains
from fairseq_deepnet.tools.checking import check
from fairseq_deepnet.tools.checking.findings import Findings
from fairseq_deepnet.tools.checking.layouts import STYLES, linear_at
from tests.support.checks import facts, kinds, sentences
from tests.support.public_like import (
    DEPTH,
    TOKENS,
    WIDTH,
    LlamaLike,
    draw,
    inverted_gain,
    right,
    value_path,
)

LLAMA = {"input_ids": TOKENS}


def fine(found: Findings) -> bool:
    assert found.is_fine, sentences(found)
    return True


@pytest.mark.parametrize("depth", [2, DEPTH, 32])
def test_the_papers_deepnorm_in_llamas_layers_passes(depth: int) -> None:
    found = check(right(depth), LLAMA, claims="deepnorm")
    assert fine(found)
    (side,) = found.sides
    assert facts(side)["alpha"] == f"{(2 * depth) ** 0.25:.4g}"
    assert facts(side)["LayerNorm"] == "after the sum, and after the stack"
    assert [row.name for row in side.rows] == [
        *(f"self_attn.{role}_proj" for role in ("q", "k", "v", "out")),
        *("fc1 gate_proj", "fc1 up_proj", "fc2"),
    ]


@pytest.mark.parametrize(("alpha", "right_at"), [(64**0.25, 32), (2.632, 24)])
def test_an_inverted_gain_and_an_alpha_for_one_depth_are_found(alpha: float, right_at: int) -> None:
    """Two public repositories, at 12 layers; at the depth of its alpha the gain alone is wrong."""
    found = check(inverted_gain(alpha), LLAMA)
    assert kinds(found) == {"weights", "residual"}
    text = sentences(found)
    assert "gain 3.1" in text  # 96^(1/4)
    assert f"expected gain {96**-0.25:.3g}." in text
    assert f"LN({alpha:.4g} x + G(x)), expected LN(2.213 x + G(x))" in text
    if alpha == 64**0.25:
        assert kinds(check(inverted_gain(alpha, right_at), LLAMA)) == {"weights"}


def test_pre_ln_is_told_from_post_ln_whatever_the_norms_are_called() -> None:
    model = LlamaLike(4, value_path(32**-0.25), place="pre")
    found = check(model, LLAMA)
    assert kinds(found) == {"residual"}
    assert "x + G(LN(x)), expected LN(1.682 x + G(x))" in sentences(found)
    assert facts(found.sides[0])["LayerNorm"] == "before the branch, and after the stack"
    assert fine(check(LlamaLike(4, value_path(1.0), place="pre"), LLAMA, claims="pre-ln"))
    scaled = LlamaLike(4, value_path(1.0), place="pre", scaled=True)
    assert fine(check(scaled, LLAMA, claims="ln-scaling"))
    assert "x + G(0.5..0.7071 LN(x)), expected x + G(LN(x))" in sentences(
        check(scaled, LLAMA, claims="pre-ln")
    )


def test_other_names_are_given_by_a_mapping() -> None:
    with pytest.raises(ValueError, match=r"Linear has no list of layers .* layers="):
        check(nn.Linear(2, 2), torch.randn(1, 2))
    layout = {name: dict(parts) for name, parts in STYLES["llama"].items()}
    assert fine(check(right(), LLAMA, layers=layout))
    layout["ffn"]["fc2"] = "mlp.nothing"
    with pytest.raises(ValueError, match=r"no layer of LlamaLike has mlp\.nothing$"):
        check(right(), LLAMA, layers=layout)


class DeepNormTorchLayer(nn.TransformerEncoderLayer):
    """torch's layer with a weighted residual."""

    alpha = 1.0

    def forward(self, src: Tensor, *_: Any, **__: Any) -> Tensor:
        x = self.norm1(self.alpha * src + self.self_attn(src, src, src)[0])
        branch = self.linear2(self.dropout(self.activation(self.linear1(x))))
        found: Tensor = self.norm2(self.alpha * x + branch)
        return found


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_a_deepnorm_in_torchs_own_layers(factor: float) -> None:
    alpha, beta = gains(6, 0)[Side.ENCODER]
    torch.manual_seed(2)
    layers = [DeepNormTorchLayer(WIDTH, 4, 96, batch_first=True) for _ in range(6)]
    model = nn.Sequential(nn.TransformerEncoder(layers[0], 1))
    model[0].layers = nn.ModuleList(layers)
    for layer in layers:
        layer.alpha = factor * alpha
        for path, gain in [("in_proj:0/3", 1), ("in_proj:1/3", 1), ("in_proj:2/3", beta)]:
            linear = linear_at(layer.self_attn, path)
            assert linear is not None
            nn.init.xavier_normal_(linear.weight, gain=gain)
            nn.init.zeros_(linear.bias)
        draw(layer, value_path(beta))
    found = check(model, torch.randn(4, 11, WIDTH))
    assert (kinds(found) == set()) is (factor == 1.0), sentences(found)
    assert kinds(found) <= {"residual"}


@pytest.mark.parametrize("first", [False, True])
def test_torchs_transformer_is_measured_on_both_sides(first: bool) -> None:
    torch.manual_seed(2)
    model = nn.Transformer(WIDTH, 4, 3, 2, 96, batch_first=True, norm_first=first)
    batch = (torch.randn(4, 11, WIDTH), torch.randn(4, 9, WIDTH))
    found = check(model, batch, claims="pre-ln" if first else "post-ln", layers="torch")
    assert [len(side.facts) for side in found.sides] == [5, 6]
    place = "before the branch" if first else "after the sum"
    assert {facts(side)["LayerNorm"] for side in found.sides} == {f"{place}, and after the stack"}
    # its start is not Xavier's a map: q, k and v are drawn as one, biases of fc1 are nn.Linear's
    assert kinds(found) == {"weights", "biases"}
    assert "self_attn.q_proj, self_attn.k_proj, self_attn.v_proj" in sentences(found)


def test_maps_of_zeros_hide_nothing() -> None:
    model = inverted_gain(24**0.25)
    for layer in model.layers:
        nn.init.zeros_(layer.self_attn.o_proj.weight)
    found = check(model, LLAMA)
    assert kinds(found) == {"weights"}, sentences(found)


def test_the_model_stays_as_it_is() -> None:
    model = right().train()
    before = copy.deepcopy(model.state_dict())
    check(model, LLAMA)
    assert model.training
    assert all(
        torch.equal(a, b) for a, b in zip(model.state_dict().values(), before.values(), strict=True)
    )
