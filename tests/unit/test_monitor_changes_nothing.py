"""Monitoring changes no number of a training, and leaves nothing behind in the model."""

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
WATCHED = ("--monitor-interval=1", "--monitor=all")
LEARNING = ("--optimizer=adam", "--lr=0.01", "--dropout=0.2", "--attention-dropout=0.1")


def train(rig: Rig, updates: int = UPDATES, freq: int = 1) -> dict[str, Tensor]:
    """Losses, gradients of the last update, parameters and outputs; the state of the generator."""
    losses = []
    for number in range(updates):
        batches: list[Sequence[Pair]] = [BATCHES[(number + n) % 2] for n in range(freq)]
        losses.append(rig.update(*batches)["loss"])
    found = {"losses": torch.tensor(losses), "random": torch.get_rng_state()}
    for name, parameter in rig.model.named_parameters():
        found |= {f"parameter {name}": parameter.detach().clone()}
        if parameter.grad is not None:
            found |= {f"gradient {name}": parameter.grad.clone()}
    with torch.no_grad():
        found["output"] = rig.model.eval()(**rig.task.sample(PROBE)["net_input"])[0]
    return found


def assert_same(plain: dict[str, Tensor], watched: dict[str, Tensor]) -> None:
    assert plain.keys() == watched.keys()
    for name, value in plain.items():
        assert torch.equal(watched[name], value), name


def compare(folder: Path, *options: str, arch: str = "deepnet_transformer", freq: int = 1) -> Rig:
    """Train with and without monitoring; what they compute is the same to the last bit."""
    plain = Rig(folder / "plain", *LEARNING, *options, "--on-divergence=off", arch=arch)
    without = train(plain, freq=freq)
    assert not plain.records()
    watched = Rig(folder / "watched", *LEARNING, *WATCHED, *options, arch=arch)
    hooks = count_hooks(watched.model)
    assert_same(without, train(watched, freq=freq))
    assert count_hooks(watched.model) == hooks == count_hooks(plain.model)
    assert len(watched.records()) == UPDATES
    return watched


@pytest.mark.parametrize(("scheme", "variant"), matrix(VARIANTS))
def test_twenty_updates_of_every_scheme_are_bit_identical(
    scheme: str, variant: str | None, tmp_path: Path
) -> None:
    options = [f"--residual-scheme={scheme}", "--encoder-layers=1", "--decoder-layers=1"]
    options += [f"--scheme-variant={variant}"] if variant else []
    compare(tmp_path, *options)


@pytest.mark.parametrize(
    ("keep", "scheme"),
    [("checkpoint", "deepnorm"), ("checkpoint", "normformer"), ("offload", "admin")],
)
def test_so_they_are_with_activation_checkpointing(keep: str, scheme: str, tmp_path: Path) -> None:
    options = [f"--{keep}-activations", f"--residual-scheme={scheme}"]
    found = compare(tmp_path, *options).records()
    # and what is measured is what is measured without: layers that run twice count once
    plain = Rig(tmp_path / "all kept", *LEARNING, *WATCHED, options[1])
    train(plain)
    assert found == plain.records()


@pytest.mark.parametrize(
    ("arch", "scheme"),
    [("deepnet_transformer_lm", "deepnorm"), ("deepnet_masked_lm", "pre-ln")],
)
def test_so_they_are_in_every_kind_of_model(scheme: str, arch: str, tmp_path: Path) -> None:
    compare(tmp_path, f"--residual-scheme={scheme}", arch=arch)


def test_so_they_are_with_the_faster_criterion_and_optimiser(tmp_path: Path) -> None:
    faster = ["--criterion=chunked_cross_entropy", "--optimizer=fused_adam"]
    found = compare(tmp_path, *faster).records()
    plain = Rig(tmp_path / "plain", *LEARNING, *WATCHED)
    train(plain)
    # and what is measured is what is measured with fairseq's own, but for rounding
    for ours, theirs in zip(found, plain.records(), strict=True):
        assert ours["gnorm"] == pytest.approx(theirs["gnorm"], rel=1e-3)
        ours, theirs = (record["values"]["gradient_norm"] for record in (ours, theirs))
        assert ours.keys() == theirs.keys()
        for stack, parts in theirs.items():
            for part, row in parts.items():
                assert ours[stack][part] == pytest.approx(row, rel=1e-3, abs=1e-5)


def test_so_they_are_in_half_precision(tmp_path: Path) -> None:
    rig = compare(tmp_path, "--bf16")
    assert rig.model.encoder.layers[0].fc1.weight.dtype is torch.bfloat16


# What is left in the model


class BrokenError(RuntimeError):
    """Something that goes wrong in the middle of an update."""


@pytest.mark.parametrize("moment", ["forward", "backward", "step"])
@pytest.mark.parametrize("keep", [(), ("--checkpoint-activations",)], ids=["", "checkpointing"])
def test_no_hook_is_left_by_an_update_that_broke_off(
    moment: str, keep: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, *WATCHED, *keep)
    rig.update()
    before = count_hooks(rig.model)
    seen: list[int] = []

    def breaks(*_: Any, **__: Any) -> None:
        seen.append(count_hooks(rig.model))
        raise BrokenError

    with monkeypatch.context() as patch:
        if moment == "forward":
            patch.setattr(rig.model.decoder, "output_layer", breaks)
        elif moment == "backward":
            patch.setattr(rig.trainer.optimizer, "backward", breaks)
        else:
            patch.setattr(rig.task, "optimizer_step", breaks)
        patch.setattr(rig.trainer, "save_checkpoint", lambda *_: None)  # fairseq's crash.pt
        with pytest.raises(BrokenError):
            rig.update()
    assert seen[0] > before, "it was not being watched"
    assert count_hooks(rig.model) == before
    assert len(rig.records()) == 1  # an update that was not made leaves no record
    rig.update()
    assert [record["update"] for record in rig.records()] == [1, 2]


def test_between_due_updates_the_model_has_no_hooks(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "--monitor-interval=3")
    seen: list[int] = []
    forward = rig.model.encoder.forward_embedding

    def looks(*args: Any, **kwargs: Any) -> Any:
        if rig.model.training:
            seen.append(count_hooks(rig.model))
        return forward(*args, **kwargs)

    rig.model.encoder.forward_embedding = looks
    for _ in range(7):
        rig.update()
    assert [count > 0 for count in seen] == [False, False, True, False, False, True, False]
