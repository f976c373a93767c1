"""--fallbacks: its grammar, what its steps make of a training's options, and taking them."""

from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet.checkpoints import load_checkpoint, num_updates
from fairseq_deepnet.divergence.watch import DEFAULT_FALLBACKS
from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.monitoring import records
from fairseq_deepnet.tools.training import fallbacks
from fairseq_deepnet.tools.training.fallbacks import Change, State
from tests.support.runs import make_checkpoint

PRESENT: dict[str, Any] = {
    "lr": [0.001],
    "warmup_updates": 0,
    "update_freq": [4],
    "dropout": 0.1,
    "clip_norm": 0.0,
    "lr_scheduler": "fixed",
    "adam_betas": "(0.9, 0.98)",
    "fp16": False,
    "bf16": False,
    "max_tokens": None,
}


def test_steps_are_separated_by_commas_and_changes_by_spaces() -> None:
    assert fallbacks.parse("lr*0.5 warmup-updates+1000,  dropout=0.3") == (
        (Change("lr", "*", "0.5"), Change("warmup-updates", "+", "1000")),
        (Change("dropout", "=", "0.3"),),
    )


def test_the_default_lowers_lr_lengthens_the_warm_up_and_enlarges_the_batch() -> None:
    steps = [change for step in fallbacks.parse(DEFAULT_FALLBACKS) for change in step]
    assert State(3, [{"changes": " ".join(map(str, steps))}]).arguments(PRESENT) == [
        *("--lr=0.00025", "--warmup-updates=1000", "--update-freq=8")
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("lr*0.5,,lr*0.5", "empty"),
        ("fp32", "'fp32' is no change"),
        ("lr/2", "'lr/2' is no change"),
        ("--lr=0.1", "is no change"),
        ("lr*half", "'half' is no number"),
        ("encoder-layers=6", "would change the model"),
        ("residual-scheme=deepnorm", "would change the model"),
        ("freeze-norms=both", "would change the model"),
        ("save-dir=there", "where it is trained"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match="--fallbacks") as refused:
        fallbacks.parse(text)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("warmup-update+10", "did you mean warmup-updates"),
        ("fp16=1", "is a switch"),
        ("adam-betas*2", "no number to change"),
        ("max-tokens*2", "no number to change"),
    ],
)
def test_what_a_training_has_not_cannot_be_changed(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        fallbacks.steps_of(text, PRESENT)
    assert says in str(refused.value)


def test_changes_are_applied_to_the_options_of_each_start_one_on_top_of_another() -> None:
    taken = [{"changes": "lr*0.5 update-freq*2"}, {"changes": "lr*0.1 dropout=0.3"}]
    state = State(2, taken)
    expected = ["--lr=5e-05", "--update-freq=8", "--dropout=0.3"]
    assert state.arguments(PRESENT) == expected
    assert state.arguments({**PRESENT, "update_freq": [1]})[1] == "--update-freq=2"
    assert State().arguments(PRESENT) == []


@pytest.mark.parametrize("text", ['{"step": ', '{"step": 1}', '{"step": 1, "lr": 2}'])
def test_a_damaged_state_is_one_line_that_says_what_to_remove(text: str, tmp_path: Path) -> None:
    (tmp_path / fallbacks.NAME).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match="remove it"):
        fallbacks.read(tmp_path)


STEPS = fallbacks.parse("dropout=0.1, lr*0.5")
ENDED: dict[str, Any] = {"update": 30, "attempt": 0, "kind": "loss_spike", "started": 22}


def diverged(run: Path, *updates: int) -> Path:
    """A run that diverged at update 30 and has checkpoints of some updates; their folder."""
    folder = run / "checkpoints"
    for update in updates:
        make_checkpoint(folder / f"checkpoint_1_{update}.pt", update)
    make_checkpoint(folder / "checkpoint_last.pt", max(updates))
    make_checkpoint(folder / "crash.pt", 30)
    records.append(run / records.NAME, {"update": 30})
    return folder


def test_a_fallback_rolls_the_run_back_to_the_newest_checkpoint_from_before(tmp_path: Path) -> None:
    folder = diverged(tmp_path, 10, 20, 30)
    (folder / "diverged_2").mkdir()
    state = fallbacks.take(tmp_path, STEPS, PRESENT, ENDED)
    assert state == fallbacks.read(tmp_path)
    assert state is not None
    # the first step changes nothing: dropout is that already
    assert str(state) == "fallback 2: starting again from update 20 with lr*0.5"
    assert state.history[0]["event"] == {"update": 30, "kind": "loss_spike", "started": 22}
    assert num_updates(load_checkpoint(folder / "checkpoint_last.pt")) == 20
    assert {path.name for path in (folder / "diverged_2_2").iterdir()} == {
        *("checkpoint_last.pt", "checkpoint_1_30.pt", "crash.pt", "monitor.jsonl")
    }
    assert (folder / "checkpoint_1_20.pt").is_file()


@pytest.mark.parametrize(("started", "update"), [(21, 20), (22, 20), (11, 0)])
def test_a_run_with_one_checkpoint_goes_back_to_it_and_not_to_the_beginning(
    started: int, update: int, tmp_path: Path
) -> None:
    """Unless the trouble is older than the checkpoint."""
    folder = diverged(tmp_path, 20)
    state = fallbacks.take(tmp_path, STEPS, PRESENT, {**ENDED, "started": started})
    assert state is not None
    assert state.history[0]["from_update"] == update
    assert ("starting again from the beginning" in str(state)) == (update == 0)
    assert (folder / "checkpoint_last.pt").is_file() == (update == 20)


def test_where_no_step_helps_the_run_is_left_as_it_is(tmp_path: Path) -> None:
    folder = diverged(tmp_path, 20, 30)
    assert fallbacks.take(tmp_path, STEPS[:1], PRESENT, ENDED) is None
    assert num_updates(load_checkpoint(folder / "checkpoint_last.pt")) == 30
    assert fallbacks.read(tmp_path) == State()


@pytest.mark.parametrize("moved", ["nothing", "one of two", "what came after", "everything"])
def test_a_rollback_that_was_killed_half_way_is_finished(tmp_path: Path, moved: str) -> None:
    folder = diverged(tmp_path, 20, 30)
    State(1, [{"step": 1, "changes": "lr*0.5", "from_update": 20}], ["diverged_1", 20]).write(
        tmp_path
    )
    aside = folder / "diverged_1"
    aside.mkdir()
    if moved != "nothing":
        (folder / "checkpoint_1_30.pt").rename(aside / "checkpoint_1_30.pt")
    if moved in ("what came after", "everything"):
        (folder / "checkpoint_last.pt").rename(aside / "checkpoint_last.pt")
    if moved == "everything":
        make_checkpoint(folder / "checkpoint_last.pt", 20)
    for _ in range(2):
        assert fallbacks.roll_back(tmp_path).pending == []
    assert num_updates(load_checkpoint(folder / "checkpoint_last.pt")) == 20
    assert num_updates(load_checkpoint(aside / "checkpoint_last.pt")) == 30
