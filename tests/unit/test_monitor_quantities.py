"""Monitored quantities against their definitions, computed by hand from a run's numbers.

The pass by hand (tests.support.by_hand) processes one sentence at a time, without padding.
Agreement with its numbers shows that the monitor ignores padding.
"""

import copy
import functools
import itertools
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
"""Schemes with different kinds of streams, branches and norms, and the position of LayerNorm."""
KINDS = [("deepnet_transformer", scheme) for scheme in PLACEMENTS]
KINDS += [("deepnet_transformer_lm", scheme) for scheme in ("deepnorm", "pre-ln")]


def near(value: float) -> Any:
    return pytest.approx(value, rel=2e-4, abs=1e-7)


def by_hand(rig: Rig, scheme: str = "deepnorm") -> ByHand:
    """Return a pass by hand with the current parameters of the rig's model."""
    alpha = {
        side: getattr(getattr(rig.model, side).layers[0].residuals["ffn"], "alpha", math.nan)
        for side in ("encoder", "decoder")
        if hasattr(rig.model, side)
    }
    return ByHand(rig.model, PLACEMENTS[scheme], **alpha)


class Measured:
    """A monitored update, with gradients and activations of all its batches computed by hand."""

    def __init__(self, rig: Rig, scheme: str, *batches: list[Pair]) -> None:
        self.hand = by_hand(rig, scheme)
        loss = self.hand.run([pair for batch in batches for pair in batch])
        names = {p: name for name, p in rig.model.named_parameters()}
        ends = [t for pairs in self.hand.norms.values() for pair in pairs for t in pair]
        gradients = torch.autograd.grad(loss, [*names, *ends], allow_unused=True)
        pairs = zip(names.values(), gradients, strict=False)
        self.gradients = {name: gradient for name, gradient in pairs if gradient is not None}
        self.through = {id(t): g for t, g in zip(ends, gradients[len(names) :], strict=True)}
        rig.update(*batches)
        self.values = rig.values()

    def gradients_of(self, *starts: str) -> list[Tensor]:
        gradients = [grad for name, grad in self.gradients.items() if name.startswith(starts)]
        assert gradients, starts
        return gradients


def weights_of(rig: Rig) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in rig.model.named_parameters()}


@pytest.fixture(params=KINDS, ids="-".join, scope="module")
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    arch, scheme = request.param
    tmp_path = tmp_path_factory.mktemp("run")
    options = ["--monitor-interval=1", f"--residual-scheme={scheme}", "--layernorm-embedding"]
    if arch == "deepnet_transformer_lm":
        options.remove("--layernorm-embedding")
    rig = Rig(tmp_path, *options, arch=arch)
    stir(rig.model)  # scalars that start at 0 would hide their branch
    return Measured(rig, scheme, TRAIN, MORE)


def layers(values: dict[str, Any]) -> list[tuple[str, int]]:
    return [(side, layer) for side in values["gradient_norm"] for layer in (0, 1)]


def parts(side: str, measured: Measured) -> list[str]:
    crossed = side == "decoder" and "encoder" in measured.values["gradient_norm"]
    return [part for part in PARTS if part != "encoder_attn" or crossed]


def test_gradient_norms_cover_layers_sublayers_and_tables(measured: Measured) -> None:
    """A sublayer's norm covers its linear maps, biases, LayerNorms and residual weight."""
    sides = measured.values["gradient_norm"]
    tables = measured.values["embedding_gradient_norm"]
    has_encoder = hasattr(measured.hand.model, "encoder")
    assert set(sides) == set(tables) == ({"encoder", "decoder"} if has_encoder else {"decoder"})
    for side, value in tables.items():
        assert value == near(size([measured.gradients[f"{side}.embed_tokens.weight"]]))
    for side, layer in layers(measured.values):
        name = f"{side}.layers.{layer}."
        assert set(sides[side]) == {"layer", *parts(side, measured)}
        assert sides[side]["layer"][layer] == near(size(measured.gradients_of(name)))
        for part in parts(side, measured):
            inner = [part, PARTS[part], f"residuals.{part}"]
            if part == "ffn":
                inner += ["fc1", "fc2", "post_activation_transform"]
            starts = tuple(f"{name}{start}" for start in inner)
            shared = f"{name}residuals.self_attn.weight"  # ReZero's one factor per layer
            if measured.hand.parameter(shared) is measured.hand.parameter(
                f"{name}residuals.{part}.weight"
            ):
                starts += (shared,)
            assert sides[side][part][layer] == near(size(measured.gradients_of(*starts))), part


@pytest.mark.parametrize("quantity", ["residual_norm", "branch_norm"])
def test_streams_and_branches_have_mean_norms_over_tokens(
    quantity: str, measured: Measured
) -> None:
    hand = measured.hand
    tensors = hand.streams if quantity == "residual_norm" else hand.branches
    for side, layer in layers(measured.values):
        norms = measured.values[quantity][side]
        assert set(norms) == set(parts(side, measured))
        for part, rows in norms.items():
            assert rows[layer] == near(mean_row(tensors[side, part, layer])), (side, part)


def test_every_layer_norm_of_the_model_has_its_input_norm(measured: Measured) -> None:
    norms = {
        (side, part, layer): value
        for side, rows in measured.values.get("layer_norm_input", {}).items()
        for part, row in rows.items()
        for layer, value in enumerate(row)
    }
    pairs = measured.hand.norms.items()
    assert norms == {slot: near(mean_row([a for a, _ in ends])) for slot, ends in pairs}


def test_the_gradient_through_a_layer_norm_excludes_the_skip_connection(measured: Measured) -> None:
    ratios = measured.values.get("layer_norm_gradient", {})
    for (side, part, layer), pairs in measured.hand.norms.items():
        into = size([measured.through[id(a)] for a, _ in pairs])
        out = size([measured.through[id(b)] for _, b in pairs])
        assert ratios[side][part][layer] == near(into / out), (side, part, layer)


def test_a_shared_table_has_one_gradient_norm_from_before_clipping(tmp_path: Path) -> None:
    words = ["--share-all-embeddings", "--clip-norm=0.001", "--optimizer=fused_adam"]
    rig = Rig(tmp_path, "--monitor-interval=1", *words)  # it scales gradients only in its step
    run = Measured(rig, "deepnorm", TRAIN)
    value = near(size([run.gradients["encoder.embed_tokens.weight"]]))
    assert run.values["embedding_gradient_norm"] == {"encoder": value, "decoder": value}
    watched = rig.trainer.observers[1].gradient_norms  # of the divergence watch
    for side, parts in run.values["gradient_norm"].items():
        assert watched[side] == [near(norm) for norm in parts["layer"]]


@torch.no_grad()
def test_tokens_are_compared_by_cosines_and_by_the_spectrum_of_their_differences(
    measured: Measured, request: pytest.FixtureRequest
) -> None:
    scheme = request.node.callspec.params["measured"][1]
    hand = ByHand(measured.hand.model, PLACEMENTS[scheme], **measured.hand.alpha)
    hand.run(PROBE)
    values = measured.values
    assert set(values["token_rank"]) == set(values["gradient_norm"])
    for side, layer in layers(values):
        tokens = torch.cat(hand.streams[side, "self_attn", layer])
        cosines = torch.cosine_similarity(tokens[:, None], tokens[None], dim=-1)
        assert values["token_similarity"][side]["layer"][layer] == near(float(cosines.mean()))
        unit = tokens / tokens.norm(dim=-1, keepdim=True)
        variances = torch.linalg.svdvals(unit - unit.mean(dim=0)).square()
        rank = float(variances.sum().square() / variances.square().sum())
        assert values["token_rank"][side]["layer"][layer] == near(rank)


def test_model_updates_are_mean_distances_of_the_probes_features(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "--monitor-interval=1", "--dropout=0.3")  # not in the probe
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


@pytest.mark.parametrize(
    ("arch", "scheme", "alphas"),
    [
        ("transformer", "deepnorm", {"encoder": 0.81 * (2**4 * 2) ** (1 / 16), "decoder": 6**0.25}),
        ("transformer_lm", "deepnorm", {"decoder": 4**0.25}),
        ("transformer_lm", "admin-log", {"decoder": math.nan}),  # a learned vector
        ("masked_lm", "deepnorm", {"encoder.sentence_encoder": 4**0.25}),
    ],
)
def test_the_bound_is_the_sum_of_theorems_4_2_and_4_3(
    arch: str, scheme: str, alphas: dict[str, float], tmp_path: Path
) -> None:
    words = ["--monitor-interval=1", f"--residual-scheme={scheme}"]
    rig = Rig(tmp_path, *words, arch=f"deepnet_{arch}")
    old = weights_of(rig)
    for _ in range(2):
        rig.update()
    new = weights_of(rig)
    sums, passed = dict.fromkeys(alphas, 0.0), 0.0
    for stack, constant in alphas.items():
        for layer, part in itertools.product((0, 1), PARTS):
            omega = new.get(f"{stack}.layers.{layer}.residuals.{part}.weight")
            alpha = constant if omega is None else float(omega.mean())
            v, w = ("fc1", "fc2") if part == "ffn" else (f"{part}.v_proj", f"{part}.out_proj")
            names = [f"{stack}.layers.{layer}.{name}.weight" for name in (v, w)]
            if names[0] in old:
                weights = [old[name] for name in names]
                # standard deviations over Xavier's, sqrt(2 / (in + out))
                gains = [math.sqrt(float(w.square().mean()) * sum(w.shape) / 2) for w in weights]
                change = size([new[name] - old[name] for name in names])
                sums[stack] += math.hypot(*gains) / alpha * change
                passed += math.prod(gains) / alpha if part == "encoder_attn" else 0
    first, *rest = sums.values()
    bound = passed * first + rest[0] if rest else first
    assert rig.values()["update_bound"] == near(math.sqrt(8) * bound)


def test_a_resumed_run_that_began_with_loaded_weights_has_no_bound(tmp_path: Path) -> None:
    for first, seed in ((1, 7), (2, 1)):  # seed 7 loads no weights
        folder = tmp_path / str(first)
        loaded = copy.deepcopy(Rig(folder, seed=7).model.state_dict())
        for start in (0, 1):
            rig = Rig(folder, "--monitor-interval=1", seed=seed)
            rig.model.load_state_dict(loaded)
            rig.trainer.set_num_updates(start)
            rig.trainer.notify("loaded", start)
            rig.update()
            loaded = copy.deepcopy(rig.model.state_dict())
        assert [record["update"] for record in rig.records()] == [1, 2]
        assert ("update_bound" in rig.values()) == (seed == 7)
        assert "model_update" in rig.values()


@pytest.mark.parametrize("scheme", ["pre-ln", "rezero", "b2t", "resi-dual"])
def test_only_post_ln_has_a_bound_and_its_gains_compound(scheme: str, tmp_path: Path) -> None:
    rig = Rig(tmp_path, "--monitor-interval=1", f"--residual-scheme={scheme}")
    rig.update()
    assert "gradient_norm" in rig.values()
    assert "update_bound" not in rig.values()
    assert ({"gain_drift", "gain_spread"} <= set(rig.values())) == (scheme in ("b2t", "resi-dual"))


def test_a_skipped_layer_has_no_numbers_and_means_cover_its_other_batches(tmp_path: Path) -> None:
    """LayerDrop draws separately for each batch of an update."""
    names = ["--encoder-layers=4", "--encoder-layerdrop=0.5", "--monitor-interval=1", "--lr=0"]
    rig = Rig(tmp_path, *names)
    outputs: list[list[Tensor]] = [[] for _ in range(4)]

    def hook(module: Any, args: Any, output: Tensor, layer: int) -> None:
        if module.training:
            outputs[layer].append(output.detach()[0])

    for layer, module in enumerate(rig.model.encoder.layers._modules.values()):
        module.fc2.register_forward_hook(functools.partial(hook, layer=layer))

    def reduce_like_legacy_ddp(model: torch.nn.Module) -> None:
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad

    rig.trainer.optimizer.all_reduce_grads = reduce_like_legacy_ddp
    counts = set()
    for _ in range(8):
        for row in outputs:
            row.clear()
        rig.update(TRAIN[:1], TRAIN[:1])  # one sentence, without padding
        counts.update(map(len, outputs))
        values = rig.values()
        norms = [near(mean_row(row)) if row else None for row in outputs]
        assert values["branch_norm"]["encoder"]["ffn"] == norms
        for quantity in ("gradient_norm", "residual_norm", "layer_norm_gradient"):
            for numbers in values[quantity]["encoder"].values():
                assert [x is None for x in numbers] == [x is None for x in norms], quantity
        for numbers in values["token_rank"]["encoder"].values():
            assert None not in numbers  # the probe passes through all layers
    assert counts == {0, 1, 2}


def test_the_gains_of_a_stack_compound_by_channel(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "--monitor-interval=1", "--residual-scheme=deepnorm", "--freeze-norms=both")
    unequal = torch.tensor([2.0, -0.5, 1, 1, 1, 1, 1, 1])
    with torch.no_grad():
        for layer in rig.model.decoder.layers:
            layer.encoder_attn_layer_norm.weight.copy_(unequal)
    rig.update()
    values = rig.values()
    assert values["gain_drift"] == {"encoder": 0.0, "decoder": near((1 + 1.5) / 8 / 3)}
    # two layers: ln 4 and -ln 4 in two of eight channels
    spread = math.log(4) * math.sqrt(2 / 7)
    assert values["gain_spread"] == {"encoder": 0.0, "decoder": near(spread)}
