"""Each quantity of the monitor against its definition, computed by hand from a training's numbers.

The pass by hand (tests.support.by_hand) takes sentences one by one and knows no padding: where the
monitor agrees with it, padding has not counted.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.by_hand import PARTS, ByHand, mean_row, size
from tests.support.models import stir
from tests.support.rig import MORE, PROBE, TRAIN, Pair, Rig

PLACEMENTS = {
    "deepnorm": "post",
    "post-ln": "post",
    "admin-log": "post",
    "pre-ln": "pre",
    "normformer": "pre",
    "dlcl": "pre",
    "rezero": "none",
    "t-fixup": "none",
}
"""Schemes whose streams, branches and norms differ in kind, and where LayerNorm stands."""
KINDS = [("deepnet_transformer", scheme) for scheme in PLACEMENTS]
KINDS += [("deepnet_transformer_lm", scheme) for scheme in ("deepnorm", "pre-ln")]
LR = 0.5


def near(value: float) -> Any:
    return pytest.approx(value, rel=2e-4, abs=1e-7)


def by_hand(rig: Rig, scheme: str = "deepnorm") -> ByHand:
    """A pass by hand over the rig's model as it is now."""
    alpha = {
        side: getattr(getattr(rig.model, side).layers[0].residuals["ffn"], "alpha", math.nan)
        for side in ("encoder", "decoder")
        if hasattr(rig.model, side)
    }
    return ByHand(rig.model, PLACEMENTS[scheme], **alpha)


class Measured:
    """One update, watched; and its loss, gradients and activations by hand."""

    def __init__(self, rig: Rig, scheme: str, *batches: list[Pair]) -> None:
        self.hand = by_hand(rig, scheme)
        self.loss = self.hand.run([pair for batch in batches for pair in batch])
        self.names = {p: name for name, p in rig.model.named_parameters()}
        norms = [t for pairs in self.hand.norms.values() for pair in pairs for t in pair]
        parameters = list(self.names)
        found = torch.autograd.grad(self.loss, [*parameters, *norms], allow_unused=True)
        self.gradients = {
            self.names[p]: grad
            for p, grad in zip(parameters, found, strict=False)
            if grad is not None
        }
        self.through = {id(t): g for t, g in zip(norms, found[len(parameters) :], strict=True)}
        self.before = {name: p.detach().clone() for p, name in self.names.items()}
        rig.update(*batches)
        self.after = {name: p.detach().clone() for p, name in self.names.items()}
        self.values = rig.values()

    def gradients_of(self, *starts: str) -> list[Tensor]:
        found = [grad for name, grad in self.gradients.items() if name.startswith(starts)]
        assert found, starts
        return found


@pytest.fixture(params=KINDS, ids="-".join, scope="module")
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    arch, scheme = request.param
    tmp_path = tmp_path_factory.mktemp("run")
    options = ["--monitor-interval=1", f"--residual-scheme={scheme}", "--layernorm-embedding"]
    if arch == "deepnet_transformer_lm":
        options.remove("--layernorm-embedding")
    rig = Rig(tmp_path, *options, arch=arch)
    stir(rig.model)  # scalars that start at 0 would hide their branch
    return Measured(rig, scheme, TRAIN)


def layers(values: dict[str, Any]) -> list[tuple[str, int]]:
    return [(side, layer) for side in values["gradient_norm"] for layer in (0, 1)]


def parts(side: str, measured: Measured) -> list[str]:
    crossed = side == "decoder" and "encoder" in measured.values["gradient_norm"]
    return [part for part in PARTS if part != "encoder_attn" or crossed]


def test_a_layers_gradient_norm_is_that_of_all_its_parameters(measured: Measured) -> None:
    sides = measured.values["gradient_norm"]
    for side, layer in layers(measured.values):
        name = f"{side}.layers.{layer}."
        assert sides[side]["layer"][layer] == near(size(measured.gradients_of(name)))
    assert set(sides) == ({"encoder", "decoder"} if "encoder" in sides else {"decoder"})


def test_a_sublayers_gradient_norm_has_its_maps_biases_norms_and_residual(
    measured: Measured,
) -> None:
    for side, layer in layers(measured.values):
        found = measured.values["gradient_norm"][side]
        assert set(found) == {"layer", *parts(side, measured)}
        for part in parts(side, measured):
            name = f"{side}.layers.{layer}."
            inner = [part, PARTS[part], f"residuals.{part}"]
            if part == "ffn":
                inner += ["fc1", "fc2", "post_activation_transform"]
            starts = tuple(f"{name}{one}" for one in inner)
            shared = f"{name}residuals.self_attn.weight"  # ReZero's one factor a layer
            if measured.hand.parameter(shared) is measured.hand.parameter(
                f"{name}residuals.{part}.weight"
            ):
                starts += (shared,)
            assert found[part][layer] == near(size(measured.gradients_of(*starts))), part


def test_each_sides_table_has_its_gradient_norm(measured: Measured) -> None:
    found = measured.values["embedding_gradient_norm"]
    assert set(found) == set(measured.values["gradient_norm"])
    for side, value in found.items():
        assert value == near(size([measured.gradients[f"{side}.embed_tokens.weight"]]))


@pytest.mark.parametrize("quantity", ["residual_norm", "branch_norm"])
def test_streams_and_branches_are_mean_norms_of_real_words(
    quantity: str, measured: Measured
) -> None:
    kept = measured.hand.streams if quantity == "residual_norm" else measured.hand.branches
    for side, layer in layers(measured.values):
        found = measured.values[quantity][side]
        assert set(found) == set(parts(side, measured))
        for part, rows in found.items():
            assert rows[layer] == near(mean_row(kept[side, part, layer])), (side, part)


def test_every_layer_norm_of_the_model_has_its_input_norm(measured: Measured) -> None:
    found = measured.values.get("layer_norm_input", {})
    expected = {
        slot: mean_row([a for a, _ in pairs]) for slot, pairs in measured.hand.norms.items()
    }
    named = {
        (side, part, layer): value
        for side, rows in found.items()
        for part, row in rows.items()
        for layer, value in enumerate(row)
    }
    assert {slot[:2] for slot in named} == {slot[:2] for slot in expected}
    assert named == {slot: near(value) for slot, value in expected.items()}


def test_the_gradient_through_a_layer_norm_is_that_of_the_norm_and_not_of_the_skip(
    measured: Measured,
) -> None:
    found = measured.values.get("layer_norm_gradient", {})
    for (side, part, layer), pairs in measured.hand.norms.items():
        into = size([measured.through[id(a)] for a, _ in pairs])
        out = size([measured.through[id(b)] for _, b in pairs])
        assert found[side][part][layer] == near(into / out), (side, part, layer)
        # LayerNorm's Jacobian, which is symmetric but for the factor that follows it
        by_jacobian = []
        weight = weight_of(measured, side, part, layer)
        for a, b in pairs:
            for row, g in zip(a.detach(), measured.through[id(b)], strict=True):
                n, middle = len(row), row - row.mean()
                sigma = float(middle.square().mean() + 1e-5) ** 0.5
                unit = middle / sigma
                jacobian = torch.eye(n) - torch.full((n, n), 1 / n) - torch.outer(unit, unit) / n
                by_jacobian.append(jacobian @ (weight * g) / sigma)
        assert found[side][part][layer] == near(size(by_jacobian) / out)


def weight_of(measured: Measured, side: str, part: str, layer: int) -> Tensor:
    """The factor after a LayerNorm, as it was before the update."""
    ends = {"embedding": "layernorm_embedding", "final": "layer_norm"}
    ends["combination"] = f"combination.norms.{layer}"
    inner = ends.get(part, f"layers.{layer}.{PARTS.get(part, part)}")
    return measured.before[f"{side}.{inner}.weight"]


def test_a_wide_layer_norm_divides_gradients_as_the_theory_says(tmp_path: Path) -> None:
    """Xiong et al. 2020: |dLN(x)/dx| = O(sqrt(C) / |x|)."""
    wide = [f"--{side}-{size}=128" for side in ("encoder", "decoder") for size in ("embed-dim",)]
    rig = Rig(tmp_path, *wide, "--monitor-interval=1")
    rig.update()
    values = rig.values()
    for side, rows in values["layer_norm_gradient"].items():
        for part, row in rows.items():
            for layer, ratio in enumerate(row):
                theory = math.sqrt(128) / values["layer_norm_input"][side][part][layer]
                assert ratio == pytest.approx(theory, rel=0.05)


def test_two_batches_of_an_update_are_measured_as_one(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "--monitor-interval=1")
    found = Measured(rig, "deepnorm", TRAIN, MORE)
    for (side, part, layer), sentences in found.hand.branches.items():
        assert found.values["branch_norm"][side][part][layer] == near(mean_row(sentences))
    for (side, part, layer), pairs in found.hand.norms.items():
        rows = found.values["layer_norm_input"][side][part]
        assert rows[layer] == near(mean_row([a for a, _ in pairs]))
        into, out = (size([found.through[id(pair[end])] for pair in pairs]) for end in (0, 1))
        assert found.values["layer_norm_gradient"][side][part][layer] == near(into / out)
    for side, layer in layers(found.values):
        expected = size(found.gradients_of(f"{side}.layers.{layer}."))
        assert found.values["gradient_norm"][side]["layer"][layer] == near(expected)


def test_a_shared_table_has_one_gradient_norm_twice_with_all_its_uses(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "--monitor-interval=1", "--share-all-embeddings")
    found = Measured(rig, "deepnorm", TRAIN)
    value = near(size([found.gradients["encoder.embed_tokens.weight"]]))
    assert found.values["embedding_gradient_norm"] == {"encoder": value, "decoder": value}


def test_gradients_are_those_before_clipping(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "--monitor-interval=1", "--clip-norm=0.001")
    found = Measured(rig, "deepnorm", TRAIN)
    assert size(list(found.gradients.values())) > 0.01
    expected = size(found.gradients_of("decoder.layers.1."))
    assert found.values["gradient_norm"]["decoder"]["layer"][1] == near(expected)


# Tokens


@torch.no_grad()
def test_the_rank_of_tokens_follows_from_the_cosines_between_them(
    measured: Measured, request: pytest.FixtureRequest
) -> None:
    scheme = request.node.callspec.params["measured"][1]
    hand = ByHand(measured.hand.model, PLACEMENTS[scheme], **measured.hand.alpha)
    hand.run(PROBE)
    found = measured.values["token_rank"]
    assert set(found) == set(measured.values["gradient_norm"])
    for side, layer in layers(measured.values):
        tokens = torch.cat(hand.streams[side, "self_attn", layer])
        cosines = torch.cosine_similarity(tokens[:, None], tokens[None], dim=-1)
        assert found[side]["layer"][layer] == near(1 / float(cosines.square().mean()))


# Model updates


def test_model_updates_are_mean_distances_of_the_probes_features(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "--monitor-interval=1")
    features = []
    for _ in range(4):
        hand = by_hand(rig)
        with torch.no_grad():
            hand.run(PROBE)
        features.append(hand.features)
        rig.update()
    for number, record in enumerate(rig.records()[:3], start=1):
        for name, origin in (("model_update", 0), ("step_update", number - 1)):
            moved = [a - b for a, b in zip(features[number], features[origin], strict=True)]
            expected = pytest.approx(mean_row(moved), rel=1e-3)
            assert record["values"][name] == expected, (name, number)


def test_a_known_change_of_the_model_is_its_update(tmp_path: Path) -> None:
    """The bias of the topmost LayerNorm moves every feature alike; the optimiser moves none."""
    rig = Rig(tmp_path, "--monitor-interval=2", "--lr=0")
    rig.update()
    with torch.no_grad():
        rig.model.decoder.layers[1].final_layer_norm.bias += torch.tensor(
            [3.0, 4, 0, 0, 0, 0, 0, 0]
        )
    rig.update()
    values = rig.values()
    assert values["model_update"] == pytest.approx(5, rel=1e-5)
    assert values["step_update"] == 0  # the change was made before the update


# The bound


def gain(weight: Tensor) -> float:
    """Standard deviation of a weight [out, in] over Xavier's, sqrt(2 / (in + out))."""
    return math.sqrt(float(weight.square().mean()) * sum(weight.shape) / 2)


def test_the_bound_of_one_layer_a_side_is_the_theorems_sum(tmp_path: Path) -> None:
    """Theorem 4.3 with N = M = 1, term by term."""
    one = ["--encoder-layers=1", "--decoder-layers=1", "--monitor-interval=1"]
    rig = Rig(tmp_path, *one)
    states = [weights_of(rig)]
    for _ in range(3):
        rig.update()
        states.append(weights_of(rig))
    alpha_e = rig.model.encoder.layers[0].residuals["ffn"].alpha
    alpha_d = rig.model.decoder.layers[0].residuals["ffn"].alpha
    assert alpha_e == pytest.approx(0.81)  # 0.81 (N^4 M)^(1/16)
    assert alpha_d == pytest.approx(3**0.25)

    def theorem(old: dict[str, Tensor], new: dict[str, Tensor]) -> float:
        def path(side: str, part: str) -> list[str]:
            v, w = ("fc1", "fc2") if part == "ffn" else (f"{part}.v_proj", f"{part}.out_proj")
            return [f"{side}.layers.0.{name}.weight" for name in (v, w)]

        def term(side: str, part: str, alpha: float) -> float:
            v, w = (gain(old[name]) for name in path(side, part))
            change = size([new[name] - old[name] for name in path(side, part)])
            return math.sqrt(v * v + w * w) / alpha * change

        v, w = (gain(old[name]) for name in path("decoder", "encoder_attn"))
        encoder = term("encoder", "self_attn", alpha_e) + term("encoder", "ffn", alpha_e)
        decoder = (
            term("decoder", "self_attn", alpha_d)
            + term("decoder", "encoder_attn", alpha_d)
            + term("decoder", "ffn", alpha_d)
        )
        return math.sqrt(8) * (v * w / alpha_d * encoder + decoder)

    for number, record in enumerate(rig.records(), start=1):
        values = record["values"]
        assert values["update_bound"] == near(theorem(states[0], states[number]))


def weights_of(rig: Rig) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in rig.model.named_parameters()}


@pytest.mark.parametrize(
    ("arch", "side"),
    [
        ("deepnet_transformer_lm", "decoder"),
        ("deepnet_masked_lm", "encoder.sentence_encoder"),
    ],
)
def test_the_bound_of_one_stack_is_that_of_theorem_4_2(
    arch: str, side: str, tmp_path: Path
) -> None:
    rig = Rig(tmp_path, "--monitor-interval=1", arch=arch)
    old = weights_of(rig)
    rig.update()
    new = weights_of(rig)
    alpha = (2 * 2) ** 0.25
    total = 0.0
    for layer in range(2):
        for pair in (("self_attn.v_proj", "self_attn.out_proj"), ("fc1", "fc2")):
            names = [f"{side}.layers.{layer}.{name}.weight" for name in pair]
            v, w = (gain(old[name]) for name in names)
            change = size([new[name] - old[name] for name in names])
            total += math.hypot(v, w) / alpha * change
    expected = near(math.sqrt(8) * total)
    assert rig.values()["update_bound"] == expected


@pytest.mark.parametrize("scheme", ["pre-ln", "rezero", "b2t", "resi-dual"])
def test_there_is_no_bound_where_sublayers_are_not_post_ln(scheme: str, tmp_path: Path) -> None:
    rig = Rig(tmp_path, "--monitor-interval=1", f"--residual-scheme={scheme}")
    rig.update()
    assert "gradient_norm" in rig.values()
    assert "update_bound" not in rig.values()


# Layers that are left out


def outputs_in_training(stack: Any) -> list[tuple[int, Tensor]]:
    """A list that grows with each layer's number and the output of its feed-forward branch."""
    outputs: list[tuple[int, Tensor]] = []

    def hook(index: int) -> Any:
        def keep(module: Any, args: Any, output: Tensor) -> None:
            if module.training:
                outputs.append((index, output.detach()))

        return keep

    for index, layer in enumerate(stack.layers._modules.values()):
        layer.fc2.register_forward_hook(hook(index))
    return outputs


def test_a_layer_that_was_left_out_has_no_numbers(tmp_path: Path) -> None:
    names = ["--encoder-layers=6", "--encoder-layerdrop=0.5", "--monitor-interval=1"]
    rig = Rig(tmp_path, *names)
    runs = outputs_in_training(rig.model.encoder)
    seen = set()
    for _ in range(8):
        runs.clear()
        rig.update()
        kept = [layer in [index for index, _ in runs] for layer in range(6)]
        seen.update(kept)
        values = rig.values()
        for quantity in ("gradient_norm", "residual_norm", "branch_norm", "layer_norm_gradient"):
            for row in values[quantity]["encoder"].values():
                assert [value is not None for value in row] == kept, quantity
        for row in values["token_rank"]["encoder"].values():
            assert None not in row  # the probe runs through all layers
    assert seen == {True, False}


def test_means_are_over_the_batches_in_which_a_layer_ran(tmp_path: Path) -> None:
    """LayerDrop draws anew for each batch of an update."""
    names = ["--encoder-layers=3", "--encoder-layerdrop=0.5", "--monitor-interval=1"]
    rig = Rig(tmp_path, *names, "--lr=0")
    outputs = outputs_in_training(rig.model.encoder)
    partly = 0
    for _ in range(8):
        outputs.clear()
        rig.update(TRAIN[:1], TRAIN[:1])  # one sentence: no padding
        for index in range(3):
            found = [output[0] for layer, output in outputs if layer == index]
            partly += len(found) == 1
            if found:
                row = rig.values()["branch_norm"]["encoder"]["ffn"]
                assert row[index] == near(mean_row(found)), f"{len(found)} of 2 batches"
    assert partly


# LayerNorm's gains


def test_the_gains_of_a_stack_compound_by_channel(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "--monitor-interval=1", "--residual-scheme=deepnorm", "--freeze-norms=both")
    unequal = torch.tensor([2.0, 0.5, 1, 1, 1, 1, 1, 1])
    with torch.no_grad():
        for layer in rig.model.decoder.layers:
            layer.encoder_attn_layer_norm.weight.copy_(unequal)
    rig.update()
    values = rig.values()
    assert values["gain_drift"] == {"encoder": 0.0, "decoder": near((1 + 0.5) / 8 / 3)}
    # two layers: ln 4 and -ln 4 in two of eight channels
    spread = math.log(4) * math.sqrt(2 / 7)
    assert values["gain_spread"] == {"encoder": 0.0, "decoder": near(spread)}


def test_gains_compound_only_where_layer_norm_follows_the_sum(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "--monitor-interval=1", "--residual-scheme=pre-ln")
    rig.update()
    assert not {"gain_drift", "gain_spread"} & set(rig.values())
