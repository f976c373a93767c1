"""Initial weights and added parameters of each scheme, against its paper's recipe.

The formulas are repeated here, independently of our code, from these sources:
DeepNet (arXiv 2203.00555) Fig. 2(b) and Section 3; DS-Init (Zhang et al. 2019) Eq. 11 and its
released code; Fixup (Zhang et al. 2019) with its released transformer_zero.py; T-Fixup (Huang et
al. 2020) Section 3.2 and its released transformer_layer.py; admin_torch/admin.py; ReZero's rztx.py;
DLCL (Wang et al. 2019) with its released dlcl.py; NormFormer (Shleifer et al. 2021); Magneto (Wang
et al. 2023) with torchscale's encoder.py and decoder.py; b2t_connection's transformer_layer.py.
"""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_deepnet.schemes import SCHEMES, Depths, Place, Role, Side, Sublayer, scheme_class
from tests.support.models import VARIANTS, build_model

VALUE_PATH = {"v_proj", "out_proj", "fc1", "fc2"}
UNIFORM = {"ds-init", "r-fixup", "t-fixup"}  # formulas give the bounds of uniform draws
N, M = 5, 3  # layers of the encoder and the decoder; formulas distinguish the two depths


def gain(scheme: str, variant: str | None, side: str, layer: int, place: str, role: str) -> float:
    """Return the ratio of a weight's standard deviation to Xavier's in an NL-ML model.

    Layers are counted from 1; `place` is fairseq's name of the branch.
    """
    depth = N if side == "encoder" else M
    branches = 2 * N + 3 * M
    if scheme == "deepnorm":
        if variant == "alpha-only":
            return 1.0
        beta = 0.87 * (N**4 * M) ** (-1 / 16) if side == "encoder" else (12 * M) ** (-1 / 4)
        return beta if role in VALUE_PATH else 1.0
    if scheme == "post-ln-init":
        return 1 / (depth - layer + 1)
    if scheme == "ds-init":
        # The code passes gain / sqrt(l) to TensorFlow as a factor on the variance.
        return 1 / math.sqrt(layer) if variant == "paper" else math.sqrt(1 / math.sqrt(layer))
    if scheme == "t-fixup":
        if role not in VALUE_PATH:
            return 1.0 if variant == "paper" else math.sqrt(1 / 2)
        return 0.67 * N ** (-1 / 4) if side == "encoder" else (9 * M) ** (-1 / 4)
    if scheme == "b2t":
        return 1 / math.sqrt(depth) if variant == "code" else 1.0
    if scheme == "sub-ln":
        if role not in VALUE_PATH or place == "encoder_attn":
            return 1.0
        encoder = math.log(3 * M) * math.log(2 * N) / 3
        return math.sqrt(encoder if side == "encoder" else math.log(3 * M))
    if scheme == "r-fixup":
        if role in ("out_proj", "fc2"):
            return 0.0
        if role == "fc1":
            return branches ** (-1 / 2)  # m = 2: L^(-1 / (2m - 2))
        # m = 4. The bound for one matrix [3d, d] is sqrt(6 / (3d + d)), not sqrt(6 / 2d).
        count = 12 if place == "encoder_attn" and variant == "code" else branches
        return count ** (-1 / 6) * math.sqrt(2 / 4)
    return 1.0


def linears(model: Any) -> Iterator[tuple[str, int, str, str, nn.Linear]]:
    """Yield side, layer (from 1), branch, role and module of every linear map in the stacks."""
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        attentions = ("self_attn",) if side == "encoder" else ("self_attn", "encoder_attn")
        for number, layer in enumerate(stack.layers, start=1):
            for place in attentions:
                for role in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    yield side, number, place, role, getattr(getattr(layer, place), role)
            for role in ("fc1", "fc2"):
                yield side, number, "ffn", role, getattr(layer, role)


@pytest.mark.parametrize(("scheme", "variant"), VARIANTS)
def test_every_initial_weight_follows_its_formula(scheme: str, variant: str | None) -> None:
    options: dict[str, Any] = {"encoder_layers": N, "decoder_layers": M}
    for side in ("encoder", "decoder"):
        options |= {f"{side}_embed_dim": 128, f"{side}_ffn_embed_dim": 192}
    model = build_model(residual_scheme=scheme, scheme_variant=variant, **options)
    pooled: list[Tensor] = []
    seen = set()
    for side, layer, place, role, linear in linears(model):
        seen.add(id(linear))
        weight = linear.weight.detach()
        xavier = math.sqrt(2 / sum(weight.shape))
        expected = gain(scheme, variant, side, layer, place, role)
        where = f"{side}.layers.{layer - 1}.{place}.{role}"
        spot = Place(Side(side), layer - 1), Sublayer(place), Role(role)
        assert model.encoder.scheme.gain(*spot) == pytest.approx(expected), where
        if scheme == "r-fixup":
            assert linear.bias is None, where
        else:
            assert not linear.bias.any(), where
        if expected == 0.0:
            assert not weight.any(), where
            continue
        # n >= 16,384 draws: four standard errors, std / sqrt(2 n), of a normal's std
        tolerance = 4 / math.sqrt(2 * weight.numel())
        assert weight.std().item() == pytest.approx(expected * xavier, rel=tolerance), where
        assert abs(weight.mean().item()) < 4 * expected * xavier / math.sqrt(weight.numel()), where
        pooled.append(weight.flatten() / (expected * xavier))
    inside = (*model.encoder.layers.modules(), *model.decoder.layers.modules())
    assert {id(module) for module in inside if isinstance(module, nn.Linear)} == seen
    scores = torch.cat(pooled)  # millions of draws from one distribution with std 1
    assert scores.std().item() == pytest.approx(1.0, rel=0.002)
    kurtosis = scores.pow(4).mean().item()
    if scheme in UNIFORM:
        assert kurtosis == pytest.approx(9 / 5, abs=0.01)
        assert scores.abs().max().item() <= math.sqrt(3) + 1e-3
    else:
        assert kurtosis == pytest.approx(3, abs=0.05)


TIES = [{}, {"share_decoder_input_output_embed": True}, {"share_all_embeddings": True}]


def tied(options: dict[str, bool]) -> str:
    return next(iter(options), "apart")


@pytest.mark.parametrize("ties", TIES, ids=tied)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_initial_embeddings_are_fairseqs_times_t_fixups_factor(
    scheme: str, ties: dict[str, bool]
) -> None:
    """T-Fixup's code multiplies by (9N)^(-1/4), and a separate decoder table by (9M)^(-1/4)."""
    depths = {"encoder_layers": N, "decoder_layers": M}
    stock = build_model("transformer", **depths, **ties)
    model = build_model(residual_scheme=scheme, **depths, **ties)
    factors = {"encoder": 1.0, "decoder": 1.0}
    if scheme == "t-fixup":
        factors = {"encoder": (9 * N) ** (-1 / 4), "decoder": (9 * M) ** (-1 / 4)}
    if "share_all_embeddings" in ties:
        assert model.decoder.embed_tokens.weight is model.encoder.embed_tokens.weight
        factors["decoder"] = factors["encoder"]
    for side in ("encoder", "decoder"):
        actual, drawn = (getattr(m, side).embed_tokens.weight for m in (model, stock))
        torch.testing.assert_close(actual, drawn * factors[side], rtol=1e-6, atol=0)
        assert not actual[1].any()  # padding
        assert actual.std().item() == pytest.approx(factors[side] * 32**-0.5, rel=0.05)


@pytest.mark.parametrize("ties", TIES, ids=tied)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_vocabulary_projection_is_fairseqs_but_r_fixups_untied_one_is_zero(
    scheme: str, ties: dict[str, bool]
) -> None:
    model = build_model(residual_scheme=scheme, **ties)
    projection = model.decoder.output_projection
    assert projection.bias is None
    if ties:
        assert projection.weight is model.decoder.embed_tokens.weight
        assert projection.weight.any()
    elif scheme == "r-fixup":
        assert not projection.weight.any()
    else:
        assert projection.weight.std().item() == pytest.approx(32**-0.5, rel=0.05)


# Added tensors by name: shape, initial value (None: checked elsewhere), number of tensors.
C, HEADS = 32, 4
Added = dict[str, tuple[tuple[int, ...], float | None, int]]


def in_residuals(name: str, shape: tuple[int, ...], start: float | None) -> Added:
    """Return the entries of a tensor with this name in every residual of a 5L-3L model."""
    encoder = {
        f"encoder.layers.residuals.{s}.{name}": (shape, start, N) for s in ("self_attn", "ffn")
    }
    decoder = {
        f"decoder.layers.residuals.{s}.{name}": (shape, start, M)
        for s in ("self_attn", "encoder_attn", "ffn")
    }
    return encoder | decoder


def one_each(name: str, shape: tuple[int, ...], start: float) -> Added:
    return {
        f"encoder.layers.{name}": (shape, start, N),
        f"decoder.layers.{name}": (shape, start, M),
    }


HEAD_FACTORS: Added = {
    **one_each("self_attn.head_transform.scale", (HEADS,), 1.0),
    "decoder.layers.encoder_attn.head_transform.scale": ((HEADS,), 1.0, M),
}
OMEGA_LOG = {
    "encoder": math.sqrt(11 / math.log(11) - 1),
    "decoder": math.sqrt(10 / math.log(10) - 1),
}
OMEGA_CONSTANT = {"encoder": math.sqrt(10), "decoder": math.sqrt(9)}  # n = 2N = 10 and 3M = 9


def omegas(start: dict[str, float]) -> Added:
    named = in_residuals("weight", (C,), None)
    return {name: (shape, start[name.split(".")[0]], n) for name, (shape, _, n) in named.items()}


# Shifts precede each branch, the activation and fc2, a weight ends each branch, a shift and a
# scale follow the encoder, and a shift follows the decoder.
R_FIXUP: Added = {
    **in_residuals("before.shift", (1,), 0.0),
    **one_each("pre_activation_transform.shift", (1,), 0.0),
    **one_each("post_activation_transform.shift", (1,), 0.0),
    **in_residuals("weight", (1,), 1.0),
    "encoder.output_transform.shift": ((1,), 0.0, 1),
    "encoder.output_transform.scale": ((1,), 1.0, 1),
    "decoder.output_transform.shift": ((1,), 0.0, 1),
}
ADDED: dict[tuple[str, str | None], Added] = {
    ("admin", None): in_residuals("weight", (C,), 1.0),
    ("admin-log", "logarithmic"): omegas(OMEGA_LOG),
    ("admin-log", "constant"): omegas(OMEGA_CONSTANT),
    # one scalar per layer, shared by its sublayers
    ("rezero", "layer"): one_each("residuals.self_attn.weight", (1,), 0.0),
    ("rezero", "sublayer"): in_residuals("weight", (1,), 0.0),
    ("r-fixup", "rule"): R_FIXUP,
    ("r-fixup", "code"): R_FIXUP,
    ("dlcl", None): {
        "encoder.combination.weight": ((N + 1, N + 1), None, 1),
        "decoder.combination.weight": ((M + 1, M + 1), None, 1),
    },
    ("normformer", "plain"): HEAD_FACTORS,
    ("normformer", "resscale"): HEAD_FACTORS | one_each("residuals.ffn.weight", (C,), 1.0),
}


@pytest.mark.parametrize(("scheme", "variant"), VARIANTS)
def test_a_scheme_adds_exactly_the_parameters_of_its_recipe(
    scheme: str, variant: str | None
) -> None:
    depths = {"encoder_layers": N, "decoder_layers": M}
    model = build_model(residual_scheme=scheme, scheme_variant=variant, **depths)
    stock = {name for name, _ in build_model("transformer", **depths).named_parameters()}
    norms = {n: module for n, module in model.named_modules() if isinstance(module, nn.LayerNorm)}
    for name, norm in norms.items():
        assert torch.equal(norm.weight, torch.ones_like(norm.weight)), name
        assert not norm.bias.any(), name
    actual: Counter[str] = Counter()
    expected = ADDED.get((scheme, variant), {})
    for name, parameter in model.named_parameters():  # shared parameters occur once
        if name in stock or name.startswith(tuple(f"{norm}." for norm in norms)):
            continue
        kind = ".".join(part for part in name.split(".") if not part.isdigit())
        assert kind in expected, name
        shape, start, _ = expected[kind]
        assert tuple(parameter.shape) == shape, name
        assert start is None or torch.equal(parameter, torch.full(shape, start)), name
        actual[kind] += 1
    assert actual == {kind: count for kind, (_, _, count) in expected.items()}
    left_out = {n for n in stock if n not in dict(model.named_parameters())}
    assert left_out == {
        n
        for n in stock
        if (scheme in ("rezero", "r-fixup", "t-fixup") and "layer_norm" in n)
        or (scheme == "r-fixup" and n.endswith(".bias"))
    }


@pytest.mark.parametrize(("depths", "side"), [((6, 0), Side.ENCODER), ((0, 6), Side.DECODER)])
def test_a_layer_of_a_single_stack_has_two_branches(depths: tuple[int, int], side: Side) -> None:
    place = Place(side, 1)
    r_fixup = SCHEMES["r-fixup"](Depths(*depths))
    assert r_fixup.gain(place, Sublayer.FFN, Role.FC1) == pytest.approx(12 ** (-1 / 2))
    actual = r_fixup.gain(place, Sublayer.SELF_ATTN, Role.Q_PROJ)
    assert actual == pytest.approx(12 ** (-1 / 6) / math.sqrt(2))
    admin_log = SCHEMES["admin-log"](Depths(*depths))
    assert admin_log.omega(side) == pytest.approx(2.01701, abs=1e-4)
    constant = scheme_class("admin-log")(Depths(*depths), variant="constant")
    assert constant.omega(side) == pytest.approx(math.sqrt(12))
    t_fixup = SCHEMES["t-fixup"](Depths(*depths))
    expected = 0.67 * 6 ** (-1 / 4) if side is Side.ENCODER else 54 ** (-1 / 4)
    assert t_fixup.gain(place, Sublayer.FFN, Role.FC2) == pytest.approx(expected)
    sub_ln = SCHEMES["sub-ln"](Depths(*depths))
    assert sub_ln.gain(place, Sublayer.FFN, Role.FC2) == pytest.approx(math.sqrt(math.log(12)))
