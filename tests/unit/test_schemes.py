"""The schemes' arithmetic against the paper's formulas, and the contract for later schemes."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.modules import DecoderLayer, EncoderLayer, LayerShape
from fairseq_deepnet.schemes import (
    SCHEMES,
    Combination,
    DeepNorm,
    Depths,
    NormPlacement,
    Place,
    PostLNInit,
    Residual,
    ResidualScheme,
    Role,
    Side,
    Sublayer,
    gains,
    scheme_class,
)
from tests.support.models import BuildModel, Schemes
from tests.support.shell import ROOT

# Computed by hand from Fig. 2(b) of arXiv 2203.00555 for N = M: (layers, encoder alpha, beta,
# decoder alpha, beta).
PUBLISHED = [
    (6, 1.418, 0.497, 2.060, 0.343),
    (10, 1.663, 0.424, 2.340, 0.302),
    (18, 1.999, 0.353, 2.711, 0.261),
    (50, 2.750, 0.256, 3.500, 0.202),
    (100, 3.416, 0.206, 4.162, 0.170),
    (500, 5.648, 0.125, 6.223, 0.114),
]


@pytest.mark.parametrize(("layers", "ea", "eb", "da", "db"), PUBLISHED)
def test_deepnorm_gains_are_the_papers(
    layers: int, ea: float, eb: float, da: float, db: float
) -> None:
    found = gains(layers, layers)
    assert found[Side.ENCODER] == pytest.approx((ea, eb), abs=6e-4)
    assert found[Side.DECODER] == pytest.approx((da, db), abs=6e-4)


def test_each_half_of_deepnorm_leaves_the_other_at_one() -> None:
    """alpha 1.999 and 2.711, beta 0.353 and 0.261 at 18L-18L, or 1."""
    place = Place(Side.DECODER, 0)
    found = {}
    for variant in DeepNorm.variants:
        scheme = DeepNorm(Depths(18, 18), variant=variant)
        beta = scheme.gain(place, Sublayer.FFN, Role.FC1)
        found[variant] = (scheme.alphas[Side.ENCODER], scheme.alphas[Side.DECODER], beta)
        assert scheme.gain(place, Sublayer.SELF_ATTN, Role.Q_PROJ) == 1
    assert found == {
        "paper": pytest.approx((1.999, 2.711, 0.261), abs=6e-4),
        "alpha-only": pytest.approx((1.999, 2.711, 1.0), abs=6e-4),
        "beta-only": pytest.approx((1.0, 1.0, 0.261), abs=6e-4),
    }
    assert DeepNorm(Depths(18, 18)).variant == "paper"


def test_deepnorm_gains_of_unequal_depths_follow_both_depths() -> None:
    found = gains(12, 3)
    assert found[Side.ENCODER].alpha == pytest.approx(0.81 * math.exp(math.log(12**4 * 3) / 16))
    assert found[Side.ENCODER].beta == pytest.approx(0.87 / math.exp(math.log(12**4 * 3) / 16))
    assert found[Side.DECODER] == pytest.approx((math.sqrt(3.0), 1 / math.sqrt(6.0)))


def test_deepnorm_gains_of_one_stack_are_the_single_stack_formulas() -> None:
    assert gains(8, 0) == {Side.ENCODER: pytest.approx((2.0, 64**-0.25))}
    assert gains(0, 8) == {Side.DECODER: pytest.approx((2.0, 64**-0.25))}


def test_deepnorm_scales_the_value_path_and_nothing_else() -> None:
    scheme = DeepNorm(Depths(18, 18))
    place = Place(Side.DECODER, 5)
    for sublayer in (Sublayer.SELF_ATTN, Sublayer.ENCODER_ATTN):
        assert scheme.gain(place, sublayer, Role.Q_PROJ) == 1.0
        assert scheme.gain(place, sublayer, Role.K_PROJ) == 1.0
        assert scheme.gain(place, sublayer, Role.V_PROJ) == pytest.approx(0.261, abs=6e-4)
        assert scheme.gain(place, sublayer, Role.OUT_PROJ) == pytest.approx(0.261, abs=6e-4)
    assert scheme.gain(place, Sublayer.FFN, Role.FC1) == pytest.approx(0.261, abs=6e-4)
    assert scheme.gain(place, Sublayer.FFN, Role.FC2) == pytest.approx(0.261, abs=6e-4)


def test_post_ln_init_starts_the_lowest_layer_smallest() -> None:
    scheme = PostLNInit(Depths(6, 4))
    found = [scheme.gain(Place(Side.ENCODER, i), Sublayer.FFN, Role.FC1) for i in range(6)]
    assert found == pytest.approx([1 / 6, 1 / 5, 1 / 4, 1 / 3, 1 / 2, 1.0])
    assert scheme.gain(Place(Side.DECODER, 0), Sublayer.SELF_ATTN, Role.Q_PROJ) == 0.25


def test_a_recorded_alpha_outlives_a_change_of_depth() -> None:
    scheme = DeepNorm(Depths(3, 3), {Side.ENCODER: 1.999, Side.DECODER: 2.711})
    assert scheme.alphas == {Side.ENCODER: 1.999, Side.DECODER: 2.711}


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_builds_and_describes_itself(name: str) -> None:
    scheme = scheme_class(name)(Depths(4, 2))
    assert name in repr(scheme)
    assert scheme.summary
    residuals = scheme.build_residuals(
        Place(Side.DECODER, 1), (Sublayer.SELF_ATTN, Sublayer.FFN), 8
    )
    assert set(residuals) == {Sublayer.SELF_ATTN, Sublayer.FFN}


@pytest.mark.parametrize(
    ("page", "pattern"), [("reference/schemes", "| `{}`"), ("reports/export", "`{}`")]
)
def test_every_scheme_stands_in_the_documentation(page: str, pattern: str) -> None:
    """With its formula and sources, and whether it folds."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    missing = [name for name in SCHEMES if not any(pattern.format(name) in row for row in rows)]
    assert not missing


def test_an_unknown_scheme_is_refused_with_the_known_names() -> None:
    with pytest.raises(ConfigurationError, match=r"deepnrom is unknown.*deepnorm, post-ln"):
        scheme_class("deepnrom")


class ScaledBranch(Residual):
    """x + scale G(x), the scale shared by a layer's sublayers, as ReZero has it."""

    def __init__(self, scale: nn.Parameter) -> None:
        super().__init__()
        self.scale = scale

    def leave(self, x: Tensor, branch: Tensor, norm: object, dropout: object) -> Tensor:
        return x + self.scale * branch


class Shift(nn.Module):
    """x + shift, R-Fixup's scalar bias."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


class HeadScale(nn.Module):
    """One factor a head, as NormFormer has it."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(heads))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale[:, None, None]


class Mean(Combination):
    """The mean of all outputs so far, with one learned factor: a small DLCL."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))
        self.seen: list[int] = []

    def forward(self, kept: list[Tensor]) -> Tensor:
        self.seen.append(len(kept))
        return self.factor * torch.stack(kept).mean(dim=0)


class EverythingScheme(ResidualScheme):
    """Uses most hooks of the contract at once: what later methods need must reach the model."""

    name = "everything"
    summary = "a test"
    norm = NormPlacement.NONE
    bias = False

    def build_residuals(
        self, place: Place, sublayers: tuple[Sublayer, ...], embed_dim: int
    ) -> dict[Sublayer, Residual]:
        shared = nn.Parameter(torch.zeros(()))
        return {sublayer: ScaledBranch(shared) for sublayer in sublayers}

    def build_head_transform(
        self, place: Place, sublayer: Sublayer, num_heads: int, embed_dim: int
    ) -> nn.Module:
        return HeadScale(num_heads)

    def build_ffn_transforms(self, place: Place, ffn_dim: int) -> tuple[nn.Module, nn.Module]:
        return Shift(), nn.LayerNorm(ffn_dim)

    def build_combination(self, side: Side, embed_dim: int) -> Combination:
        return Mean()

    def gain(self, place: Place, sublayer: Sublayer, role: Role) -> float:
        return 0.0 if role is Role.FC2 else 1.0

    def initialise_ends(self, stacks: Mapping[Side, Any]) -> None:
        with torch.no_grad():
            stacks[Side.ENCODER].embed_tokens.weight.mul_(0.5)


def test_the_contract_carries_branch_scales_shifts_head_scales_and_missing_biases() -> None:
    shape = LayerShape(8, 16, 2, 8, 0.0, 0.0, 0.0, "relu")
    scheme = EverythingScheme(Depths(1, 1))
    layer = DecoderLayer(shape, scheme, Place(Side.DECODER, 0))
    layer.initialise(scheme)
    names = dict(layer.named_parameters())
    assert not [name for name in names if name.endswith("proj.bias") or "layer_norm" in name]
    assert {"self_attn.head_transform.scale", "pre_activation_transform.shift"} <= set(names)
    assert sum(name.startswith("residuals") for name in names) == 1  # one scalar, shared
    assert not layer.fc2.weight.any()
    x, source = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    with torch.no_grad():
        assert torch.equal(layer(x, source)[0], x)  # ReZero is the identity at the start
        layer.residual(Sublayer.SELF_ATTN).scale.data.fill_(1.0)
        assert not torch.equal(layer(x, source)[0], x)


def test_the_contract_carries_layer_combinations_and_scaled_embeddings(
    model_builder: BuildModel, batch: dict[str, Tensor], schemes: Schemes
) -> None:
    plain = model_builder(share_all_embeddings=True)
    schemes["everything"] = EverythingScheme
    model = model_builder(residual_scheme="everything", share_all_embeddings=True)
    # Once, though both stacks and the vocabulary projection share the embedding.
    halved = plain.encoder.embed_tokens.weight * 0.5
    assert torch.equal(model.decoder.output_projection.weight, halved)
    logits, _ = model(**batch)
    assert model.encoder.combination.seen == [1, 2, 3, 4]
    assert model.decoder.combination.seen == [1, 2, 3]
    logits.sum().backward()
    assert model.decoder.combination.factor.grad.abs() > 0


def test_an_encoder_layer_without_norms_has_none() -> None:
    shape = LayerShape(8, 16, 2, 8, 0.0, 0.0, 0.0, "relu")
    layer = EncoderLayer(shape, EverythingScheme(Depths(1, 1)), Place(Side.ENCODER, 0))
    assert layer.self_attn_layer_norm is None
    assert layer.final_layer_norm is None
