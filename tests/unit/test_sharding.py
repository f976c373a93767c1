"""Sharded training in one process: updates, checkpoints, norms and errors.

See test_sharded_training.py for several processes.
"""

import atexit
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.footprint.memory import unit_length
from fairseq_deepnet.monitoring.instruments import GradientNorms
from fairseq_deepnet.schemes import SCHEMES
from fairseq_deepnet.sharding.model import give_memory, units, without_weights
from fairseq_deepnet.sharding.trainer import end_at_once, noting_errors
from tests.support.rig import ARCHS, MORE, TRAIN, Rig, Task, parse
from tests.support.sharded_process import compare

ADAM = ["--optimizer=adam", "--adam-eps=0.001", "--lr=0.01", "--clip-norm=0.5"]
SHARDED = "--ddp-backend=fully_sharded"
pytestmark = pytest.mark.usefixtures("process_group")


def checkpoint(rig: Rig) -> dict[str, Any]:
    rig.trainer.consolidate_optimizer()
    return dict(rig.trainer.state_dict())


def train(folder: Path, *arguments: str, **options: Any) -> Rig:
    rig = Rig(folder, *ADAM, *arguments, **options)
    for _ in range(2):
        rig.update(TRAIN, MORE)
    return rig


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--share-all-embeddings", "--checkpoint-activations-every=2", "--bucket-cap-mb=0"),
        ("--dropout=0.3", "--attention-dropout=0.1", "--checkpoint-activations-every=1"),
        ("--optimizer=fused_adam", "--no-reshard-after-forward", "--bucket-cap-mb=0"),
        ("--criterion=chunked_label_smoothed_cross_entropy", "--label-smoothing=0.1"),
        ("--residual-scheme=admin", "--cpu-offload"),
        ("--residual-scheme=dlcl",),
        pytest.param(("--compile", "--checkpoint-activations-every=2"), marks=pytest.mark.slow),
    ],
)
def test_a_sharded_model_has_the_updates_and_the_checkpoint_of_a_plain_model(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    others = [word for word in arguments if word != "--cpu-offload"]
    plain, sharded = train(tmp_path, *others), train(tmp_path, SHARDED, *arguments)
    assert any(isinstance(p, DTensor) for p in sharded.model.parameters())
    whole, gathered = checkpoint(plain), checkpoint(sharded)
    assert whole.keys() == gathered.keys()
    assert list(whole["model"]) == list(gathered["model"])
    assert compare(whole["model"], gathered["model"]) < 1e-6
    assert compare(whole["last_optimizer_state"], gathered["last_optimizer_state"]) < 1e-6
    names = [contents["optimizer_history"][-1]["optimizer_name"] for contents in (whole, gathered)]
    assert names[0] == names[1]


@pytest.mark.parametrize("residual_dtype", ["model", "float32"])
def test_bf16_weights_are_stored_in_fp32_and_cast_when_gathered(
    residual_dtype: str, tmp_path: Path
) -> None:
    words = ["--bf16", f"--residual-dtype={residual_dtype}"]
    plain, sharded = train(tmp_path, *words), train(tmp_path, SHARDED, *words)
    assert {p.dtype for p in sharded.trainer.sharded.trained()} == {torch.float32}
    whole, gathered = checkpoint(plain), checkpoint(sharded)
    state, split = whole["last_optimizer_state"], gathered["last_optimizer_state"]
    assert state.keys() == split.keys()
    assert len(state["fp32_params"]) == len(split["fp32_params"])
    # bf16 activations are rounded in another order; bf16 has a precision of 1 / 256
    assert compare(state["fp32_params"], split["fp32_params"]) < 2**-7
    for value in gathered["model"].values():
        assert torch.equal(value, value.to(torch.bfloat16).float())


@pytest.mark.parametrize("precision", [(), ("--bf16",)])
@pytest.mark.parametrize("backends", [("legacy_ddp", "fully_sharded"), ("fully_sharded",) * 2])
def test_a_run_resumes_under_either_backend(
    precision: tuple[str, ...], backends: tuple[str, str], tmp_path: Path
) -> None:
    whole = train(tmp_path, SHARDED, *precision)
    before = train(tmp_path, f"--ddp-backend={backends[0]}", *precision)
    file = tmp_path / "checkpoint_last.pt"
    save(before, file)
    after = Rig(tmp_path, *ADAM, f"--ddp-backend={backends[1]}", *precision, seed=2)
    after.trainer.load_checkpoint(str(file))
    assert after.trainer.get_num_updates() == 2
    whole.update(MORE)
    after.update(MORE)
    tolerance = 2**-6 if precision else 1e-6  # two steps of bf16 at 1, as of LayerNorm weights
    assert compare(checkpoint(whole)["model"], checkpoint(after)["model"]) < tolerance


def test_fp16_saves_its_loss_scale_and_one_row_of_all_weights(tmp_path: Path) -> None:
    """Compare the checkpoint with fairseq's layout, as unsharded fp16 training needs a GPU."""
    rig = train(tmp_path, SHARDED, "--fp16", "--fp16-init-scale=4")
    file = tmp_path / "checkpoint_last.pt"
    state = save(rig, file)["last_optimizer_state"]
    total = sum(p.numel() for p in rig.trainer.sharded.trained())
    assert state["loss_scale"] == 4
    assert [row.numel() for row in state["fp32_params"]] == [total]
    assert state["param_groups"][0]["params"] == [0]
    assert state["state"][0]["exp_avg"].numel() == total
    after = Rig(tmp_path, *ADAM, SHARDED, "--fp16", "--fp16-init-scale=4", seed=2)
    after.trainer.load_checkpoint(str(file))
    again = checkpoint(after)
    assert compare(state, again["last_optimizer_state"]) == 0
    assert compare(checkpoint(rig)["model"], again["model"]) == 0


def test_the_watch_measures_full_gradients(tmp_path: Path) -> None:
    seen = []
    for words in ((), (SHARDED,)):
        rig = Rig(tmp_path, *words)
        norms = GradientNorms(rig.model)

        def notify(event: str, *args: Any, norms: Any = norms) -> None:
            if event == "gradients":
                seen.append(norms.measure())

        rig.trainer.notify = notify
        rig.update(TRAIN)
    plain, sharded = seen
    assert plain.keys() == sharded.keys()
    assert compare(plain, sharded) < 1e-5


def test_the_monitor_lists_the_quantities_that_it_cannot_measure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tmp_path, SHARDED, "--monitor-interval=1")
    assert "not monitored because the model is sharded: " in caplog.text
    assert "model_update" in caplog.text
    assert "gradient_norm" not in caplog.messages[-1]
    rig.update(TRAIN)
    values = rig.values()
    assert "gradient_norm" in values
    assert "model_update" not in values


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--encoder-layerdrop=0.2", "--residual-scheme=post-ln"), "--encoder-layerdrop"),
        (("--bf16", "--memory-efficient-bf16"), "--memory-efficient"),
    ],
)
def test_an_option_that_sharding_does_not_support_is_an_error(
    words: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=f"{named}.* is not supported with --ddp-backend"):
        Rig(tmp_path, SHARDED, *words)


def test_fine_tuning_with_branchnorm_starts_from_the_checkpoints_scale(tmp_path: Path) -> None:
    """Loading buffers must call the residual's load hook."""
    scales = []
    for way in ((), (SHARDED,)):
        words = (*ADAM, "--residual-scheme=branchnorm", "--warmup-updates=4", *way)
        rig = Rig(tmp_path, *words)
        for _ in range(3):
            rig.update(TRAIN)
        file = tmp_path / "checkpoint_last.pt"
        save(rig, file)
        after = Rig(tmp_path, *words, seed=2)
        after.trainer.load_checkpoint(str(file), reset_optimizer=True, reset_lr_scheduler=True)
        after.trainer.set_num_updates(0)
        after.update(TRAIN)
        scales.append(checkpoint(after)["model"]["encoder.layers.0.residuals.ffn.scale"].item())
    assert scales[0] == scales[1] == 0.75


@pytest.mark.parametrize(("raised", "status"), [(KeyError("word"), 1), (SystemExit(3), 3)])
def test_an_uncaught_error_ends_the_process_at_once(
    raised: BaseException, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another hook, such as that of errors.py, reports the error and may set the exit status."""

    def shown(kind: object, error: BaseException, traceback: object) -> None:
        if isinstance(error, SystemExit):
            raise error

    monkeypatch.setattr(sys, "excepthook", shown)
    ended: list[int] = []
    monkeypatch.setattr("fairseq_deepnet.sharding.trainer.os._exit", ended.append)
    end_at_once()
    once = sys.excepthook
    end_at_once()
    assert sys.excepthook is once
    sys.excepthook(type(raised), raised, None)
    assert ended == [status]


def fail_as_spawned(rank: int) -> None:
    """Raise an error in a process whose shutdown would hang, as NCCL's would."""
    atexit.register(time.sleep, 600)
    end_at_once()
    with noting_errors():
        raise KeyError("no such word")


def test_a_spawned_process_ends_although_torch_catches_its_error() -> None:
    context = torch.multiprocessing.spawn(fail_as_spawned, nprocs=1, join=False)
    with pytest.raises(torch.multiprocessing.ProcessRaisedException, match="no such word"):
        context.join(timeout=120)
    (process,) = context.processes
    assert process.exitcode == 1


def save(rig: Rig, file: Path) -> dict[str, Any]:
    """Save a checkpoint as fairseq does, and return its contents."""
    rig.trainer.consolidate_optimizer()
    itr = {"epoch": 1, "iterations_in_epoch": 1, "version": 2}
    rig.trainer.save_checkpoint(str(file), {"train_iterator": itr, "val_loss": None})
    contents: dict[str, Any] = torch.load(file, weights_only=True)
    return contents


def test_a_checkpoint_from_another_model_or_optimiser_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint_last.pt"
    contents = save(train(tmp_path, SHARDED), file)
    other = Rig(tmp_path, *ADAM, SHARDED, "--encoder-ffn-embed-dim=16")
    with pytest.raises(Exception, match="Cannot load model parameters from checkpoint"):
        other.trainer.load_checkpoint(str(file))
    alone: Any = Rig(tmp_path, *ADAM, SHARDED).trainer
    alone.wait_for_checkpoint = Mock(side_effect=RuntimeError("Connection closed by peer"))
    with pytest.raises(RuntimeError, match="Connection closed"):  # the file is not to blame
        alone.load_checkpoint(str(file))
    contents["last_optimizer_state"]["param_groups"][0]["params"].pop()
    torch.save(contents, file)
    with pytest.raises(ConfigurationError, match="--reset-optimizer"):
        Rig(tmp_path, *ADAM, SHARDED).trainer.load_checkpoint(str(file))


def test_a_checkpoint_without_optimiser_state_loads_its_weights(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint_last.pt"
    contents = save(train(tmp_path, SHARDED, "--no-save-optimizer-state"), file)
    assert "last_optimizer_state" not in contents
    with pytest.raises(ConfigurationError, match=r"last\.pt contains no optimiser state"):
        Rig(tmp_path, *ADAM, SHARDED).trainer.load_checkpoint(str(file))
    after = Rig(tmp_path / "other", *ADAM, SHARDED, seed=2)
    after.trainer.load_checkpoint(str(file))
    assert compare(contents["model"], checkpoint(after)["model"]) == 0


def test_offloaded_gradients_are_clipped_on_their_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fairseq's clipping would move the norm to a GPU, simulated by torch's meta device."""
    rig = train(tmp_path, SHARDED, "--cpu-offload")
    grads = [p.grad for p in rig.trainer.optimizer.params if p.grad is not None]
    for grad in grads:
        grad.fill_(3.0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("meta"))
    norm = rig.trainer.optimizer.clip_grad_norm(0.5, aggregate_norm_fn=lambda norm: norm)
    count = sum(grad.numel() for grad in grads)
    assert norm.item() == pytest.approx(3 * count**0.5)
    clipped = torch.cat([grad.flatten() for grad in grads])
    assert clipped.norm().item() == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize(
    ("layer", "segment", "unit", "length"),
    [
        (10, 0, 35, 3),
        (10, 0, 5, 1),
        (10, 1, 35, 3),
        (10, 2, 55, 4),  # two complete segments
        (10, 7, 35, 7),  # a segment is recomputed as a whole
    ],
)
def test_a_unit_is_a_number_of_complete_segments_of_limited_size(
    layer: int, segment: int, unit: int, length: int
) -> None:
    assert unit_length(layer, segment, unit) == length


def test_every_layer_is_in_one_unit_and_other_parameters_in_the_root_unit(tmp_path: Path) -> None:
    rig = Rig(tmp_path, SHARDED, "--bucket-cap-mb=0")
    assert sum(isinstance(m, FSDPModule) for m in rig.model.modules()) == 1 + 2 + 2
    grouped = [layer for unit in units(rig.model, 2**40, 4) for layer in unit]
    assert grouped == [*rig.model.encoder.layers, *rig.model.decoder.layers]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("arch", ["deepnet_transformer", "deepnet_masked_lm"])
def test_other_ranks_build_parameters_without_memory(
    arch: str, scheme: str, tmp_path: Path
) -> None:
    words = [f"--residual-scheme={scheme}", *["--share-all-embeddings"] * (ARCHS[arch] - 1)]
    whole = Rig(tmp_path, *words, arch=arch).model
    state = torch.manual_seed(1).get_state()
    with without_weights():
        empty = ARCH_MODEL_REGISTRY[arch].build_model(parse(arch, *words), Task(ARCHS[arch] == 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert nn.Linear(2, 2).weight.is_meta is False
    parameters = dict(empty.named_parameters())
    assert {n: p.shape for n, p in parameters.items()} == {
        n: p.shape for n, p in whole.named_parameters()
    }
    assert all(p.is_meta for p in parameters.values())
    assert not any(buffer.is_meta for buffer in empty.buffers())
    assert compare(dict(whole.named_buffers()), dict(empty.named_buffers())) == 0
    give_memory([empty])
    assert not any(p.is_meta for p in parameters.values())
    assert parameters.keys() == dict(empty.named_parameters()).keys()  # tied parameters occur once
