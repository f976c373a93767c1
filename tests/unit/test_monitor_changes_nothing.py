"""Monitoring changes no number of a run, and leaves no hook behind."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.models import VARIANTS, matrix
from tests.support.rig import MORE, PROBE, TRAIN, Pair, Rig, count_hooks

UPDATES = 20
BATCHES = (TRAIN, MORE)
MONITORED = ("--monitor-interval=1", "--monitor=all")
LEARNING = ("--optimizer=adam", "--lr=0.01", "--dropout=0.2", "--attention-dropout=0.1")


def train(rig: Rig) -> dict[str, Tensor]:
    """Return losses, the last gradients, parameters, outputs and the random state."""
    losses = []
    for number in range(UPDATES):
        batch: Sequence[Pair] = BATCHES[number % 2]
        losses.append(rig.update(batch)["loss"])
    state = {"losses": torch.tensor(losses), "random": torch.get_rng_state()}
    for name, parameter in rig.model.named_parameters():
        state[f"parameter {name}"] = parameter.detach().clone()
        if parameter.grad is not None:
            state[f"gradient {name}"] = parameter.grad.clone()
    with torch.no_grad():
        state["output"] = rig.model.eval()(**rig.task.sample(PROBE)["net_input"])[0]
    return state


def compare(folder: Path, *options: str, arch: str = "deepnet_transformer") -> Rig:
    """Train with and without monitoring; require bit-identical results."""
    plain = Rig(folder / "plain", *LEARNING, *options, "--on-divergence=off", arch=arch)
    expected = train(plain)
    assert not plain.records()
    monitored = Rig(folder / "monitored", *LEARNING, *MONITORED, *options, arch=arch)
    hooks = count_hooks(monitored.model)
    state = train(monitored)
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(state[name], value), name
    assert count_hooks(monitored.model) == hooks == count_hooks(plain.model)
    assert len(monitored.records()) == UPDATES
    return monitored


@pytest.mark.parametrize(("scheme", "variant"), matrix(VARIANTS))
def test_twenty_updates_of_every_scheme_are_bit_identical(
    scheme: str, variant: str | None, tmp_path: Path
) -> None:
    options = [f"--residual-scheme={scheme}", "--encoder-layers=1", "--decoder-layers=1"]
    options += [f"--scheme-variant={variant}"] if variant else []
    compare(tmp_path, *options)


@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("deepnet_transformer_lm", []),
        ("deepnet_masked_lm", ["--residual-scheme=pre-ln"]),
        ("deepnet_transformer", ["--bf16"]),
        ("deepnet_transformer", ["--criterion=chunked_cross_entropy", "--optimizer=fused_adam"]),
    ],
)
def test_updates_of_other_models_and_fast_kernels_are_bit_identical(
    arch: str, options: list[str], tmp_path: Path
) -> None:
    compare(tmp_path, *options, arch=arch)


@pytest.mark.parametrize(
    ("checkpointing", "scheme"),
    [("--checkpoint-activations", "normformer"), ("--offload-activations", "admin")],
)
def test_layers_that_activation_checkpointing_repeats_count_once(
    checkpointing: str, scheme: str, tmp_path: Path
) -> None:
    name = f"--residual-scheme={scheme}"
    plain = Rig(tmp_path / "without", *LEARNING, *MONITORED, name)
    train(plain)
    assert compare(tmp_path, checkpointing, name).records() == plain.records()


class BrokenError(RuntimeError):
    """Failure within an update."""


@pytest.mark.parametrize("moment", ["forward", "backward", "step"])
def test_a_failed_update_leaves_no_hook_and_no_record(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, *MONITORED, "--checkpoint-activations")
    rig.update()
    before = count_hooks(rig.model)
    counts: list[int] = []

    def fail(*_: Any, **__: Any) -> None:
        counts.append(count_hooks(rig.model))
        raise BrokenError

    with monkeypatch.context() as patch:
        if moment == "forward":
            patch.setattr(rig.model.decoder, "output_layer", fail)
        elif moment == "backward":
            patch.setattr(rig.trainer.optimizer, "backward", fail)
        else:
            patch.setattr(rig.task, "optimizer_step", fail)
        patch.setattr(rig.trainer, "save_checkpoint", lambda *_: None)  # fairseq's crash.pt
        with pytest.raises(BrokenError):
            rig.update()
    assert counts[0] > before
    assert count_hooks(rig.model) == before
    rig.update()
    assert [record["update"] for record in rig.records()] == [1, 2]


def test_the_model_has_hooks_only_in_measured_updates(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "--monitor-interval=3")
    counts: list[int] = []
    forward = rig.model.encoder.forward_embedding

    def count(*args: Any, **kwargs: Any) -> Any:
        if rig.model.training:
            counts.append(count_hooks(rig.model))
        return forward(*args, **kwargs)

    rig.model.encoder.forward_embedding = count
    for _ in range(7):
        rig.update()
    assert [number > 0 for number in counts] == [False, False, True, False, False, True, False]
