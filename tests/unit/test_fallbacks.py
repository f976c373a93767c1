"""--fallbacks: its steps, what they change, and rollbacks."""

from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet.checkpoints import load_checkpoint, num_updates, save_checkpoint
from fairseq_deepnet.divergence.watch import DEFAULT_FALLBACKS
from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.monitoring import records
from fairseq_deepnet.tools.training import fallbacks
from tests.support.runs import make_checkpoint

OPTIONS: dict[str, Any] = {"lr": [0.009], "warmup_updates": 0, "update_freq": [4], "dropout": 0.1}


def test_steps_multiply_the_options_of_each_start() -> None:
    steps = fallbacks.parse(DEFAULT_FALLBACKS)
    assert fallbacks.arguments(steps[:1], OPTIONS) == ["--lr=0.0045"]
    assert fallbacks.arguments(steps, OPTIONS) == ["--lr=0.00225", "--update-freq=8"]
    # on other devices
    changed = fallbacks.arguments(steps, OPTIONS | {"update_freq": [1]})
    assert changed == ["--lr=0.00225", "--update-freq=2"]
    assert fallbacks.arguments(["dropout*3"], OPTIONS) == ["--dropout=0.3"]
    assert fallbacks.arguments([], OPTIONS) == []


@pytest.mark.parametrize(
    "text", ["", "lr*0.5,,lr*0.5", "lr/2", "lr*half", "lr*0", "lr=0.1", "encoder-layers*2"]
)
def test_other_steps_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--fallbacks: .* is not a step; write OPTION"):
        fallbacks.parse(text)


@pytest.mark.parametrize("option", ["weight-decay", "clip-norm", "warmup-updates"])
def test_an_option_that_the_run_does_not_set_or_that_is_0_cannot_change(option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"this run has no --{option}"):
        fallbacks.arguments([f"{option}*2"], OPTIONS | {"clip_norm": 0.0})


@pytest.mark.parametrize("text", ['{"history": ', '{"pending": []}'])
def test_a_damaged_state_is_one_line_with_the_file_to_remove(text: str, tmp_path: Path) -> None:
    (tmp_path / fallbacks.NAME).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="remove it"):
        fallbacks.read(tmp_path)


ENDED: dict[str, Any] = {"update": 30, "attempt": 0, "kind": "loss_spike", "started": 22}


def diverged(run: Path, *updates: int) -> Path:
    """Return the checkpoint folder of a run that diverged at update 30."""
    folder = run / "checkpoints"
    for update in updates:
        make_checkpoint(folder / f"checkpoint_1_{update}.pt", update)
    make_checkpoint(folder / "checkpoint_last.pt", max(updates))
    make_checkpoint(folder / "crash.pt", 30)
    records.append(run / records.NAME, {"update": 30})
    return folder


def test_a_fallback_rolls_the_run_back_to_the_newest_earlier_checkpoint(tmp_path: Path) -> None:
    folder = diverged(tmp_path, 10, 20, 30)
    (folder / "diverged_1").mkdir()
    history = fallbacks.take(tmp_path, "lr*0.5", ENDED)
    assert history == fallbacks.read(tmp_path)
    assert fallbacks.describe(history) == "fallback 1: lr*0.5 from update 20 on"
    assert history[0]["event"] == {"update": 30, "kind": "loss_spike", "started": 22}
    assert num_updates(load_checkpoint(folder / "checkpoint_last.pt")) == 20
    assert {path.name for path in (folder / "diverged_2").iterdir()} == {
        *("checkpoint_last.pt", "checkpoint_1_30.pt", "crash.pt", "monitor.jsonl")
    }
    assert (folder / "checkpoint_1_20.pt").is_file()


def test_after_a_rollback_the_best_earlier_checkpoint_is_the_best(tmp_path: Path) -> None:
    folder = diverged(tmp_path, 5, 10, 20, 30)
    for update, loss, best in ((5, 4.0, 4.0), (10, 3.0, 3.0), (20, 3.5, 3.0), (30, 2.9, 2.9)):
        path = folder / f"checkpoint_1_{update}.pt"
        extra = {"val_loss": loss, "best": best}
        save_checkpoint(load_checkpoint(path) | {"extra_state": extra}, path)
    make_checkpoint(folder / "checkpoint_best.pt", 30)
    fallbacks.take(tmp_path, "lr*0.5", ENDED)
    assert num_updates(load_checkpoint(folder / "checkpoint_best.pt")) == 10


@pytest.mark.parametrize(("started", "update"), [(21, 20), (22, 20), (11, 0)])
def test_a_run_rolls_back_to_its_only_checkpoint(started: int, update: int, tmp_path: Path) -> None:
    """If the divergence began before that checkpoint, the run restarts from the beginning."""
    folder = diverged(tmp_path, 20)
    history = fallbacks.take(tmp_path, "lr*0.5", {**ENDED, "started": started})
    assert history[0]["from_update"] == update
    assert ("from the beginning" in fallbacks.describe(history)) == (update == 0)
    assert (folder / "checkpoint_last.pt").is_file() == (update == 20)


@pytest.mark.parametrize("function", ["rename", "write_json"])
def test_the_next_start_finishes_a_killed_rollback(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = diverged(tmp_path, 20, 30)
    calls: list[object] = []
    rename = Path.rename

    def kill(*args: object) -> None:
        calls.append(args)
        if function == "write_json" or len(calls) == 2:
            raise KeyboardInterrupt
        rename(*args)  # type: ignore[arg-type]

    owner = fallbacks if function == "write_json" else Path
    with monkeypatch.context() as patch:
        patch.setattr(owner, function, kill)
        with pytest.raises(KeyboardInterrupt):
            fallbacks.take(tmp_path, "lr*0.5", ENDED)
    assert fallbacks.read(tmp_path) == []
    (history,) = fallbacks.take(tmp_path, "lr*0.5", ENDED)
    assert history["from_update"] == 20
    assert num_updates(load_checkpoint(folder / "checkpoint_last.pt")) == 20
    moved = {path.name for path in folder.glob("diverged_*/*.pt")}
    assert moved == {"checkpoint_last.pt", "checkpoint_1_30.pt", "crash.pt"}
