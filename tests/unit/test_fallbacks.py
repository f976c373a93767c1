"""--fallbacks: its grammar, what its steps make of a training's options, and taking them."""

from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet.checkpoints import load_checkpoint, num_updates
from fairseq_deepnet.divergence import good_states
from fairseq_deepnet.divergence.options import DEFAULT_FALLBACKS
from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.monitoring import records
from fairseq_deepnet.tools.training import fallbacks
from fairseq_deepnet.tools.training.fallbacks import Change, FallbackState, Pending
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
    assert fallbacks.parse("lr*0.5 warmup-updates+1000,  fp32, dropout=0.3") == (
        (Change("lr", "*", "0.5"), Change("warmup-updates", "+", "1000")),
        (Change("fp32"),),
        (Change("dropout", "=", "0.3"),),
    )


def test_the_default_lowers_lr_lengthens_the_warm_up_enlarges_the_batch_and_ends_in_fp32() -> None:
    made = [fallbacks.overrides(step, PRESENT) for step in fallbacks.parse(DEFAULT_FALLBACKS)]
    assert made == [
        {"lr": "0.0005", "warmup-updates": "1000"},
        {"lr": "0.0005"},
        {"update-freq": "8"},
        {"fp32": ""},
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("lr*0.5,,fp32", "empty"),
        ("lr", "'lr' is no change"),
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


def test_whole_numbers_stay_whole_and_lists_are_changed_in_each_member() -> None:
    (step,) = fallbacks.parse("update-freq*1.5 lr*0.1")
    present = {"update_freq": [1, 3], "lr": [0.5, 0.25]}
    assert fallbacks.overrides(step, present) == {"update-freq": "2,4", "lr": "0.05,0.025"}


def test_a_step_that_changes_nothing_does_not_help() -> None:
    fp32, lr = Change("fp32"), Change("lr", "=", "0.001")
    assert not fp32.helps(PRESENT, 0)
    assert fp32.helps({**PRESENT, "bf16": True}, 0)
    assert not lr.helps(PRESENT, 0)
    assert lr.helps({**PRESENT, "lr": [0.1]}, 0)


def test_a_warm_up_that_is_over_is_not_lengthened() -> None:
    longer = Change("warmup-updates", "+", "1000")
    present = {"warmup_updates": 100}
    assert longer.helps(present, 0)
    assert longer.helps(present, 99)
    assert not longer.helps(present, 100)


def test_the_default_passes_over_what_this_training_has_not() -> None:
    present = {name: value for name, value in PRESENT.items() if name != "warmup_updates"}
    (first, *_) = fallbacks.steps_of(None, present)
    assert first == (Change("lr", "*", "0.5"),)
    with pytest.raises(ConfigurationError, match="no option --warmup-updates"):
        fallbacks.steps_of("warmup-updates+10", present)


def test_an_attempts_command_adds_what_changed_and_drops_what_would_undo_it() -> None:
    words = ["python", "fairseq-train", "data", "--fp16", "--lr", "0.1", "--reset-optimizer"]
    assert FallbackState().command(words) == words
    assert FallbackState(1, {"lr": "0.05"}).command(words) == [
        *words,
        "--lr=0.05",
        "--fallback-step=1",
    ]
    assert FallbackState(2, {"lr": "0.05", "fp32": ""}, resumes=True).command(words) == [
        *["python", "fairseq-train", "data", "--lr", "0.1", "--lr=0.05"],
        *["--restore-file=checkpoint_last.pt", "--fallback-step=2"],
    ]


def test_without_a_good_state_a_run_begins_again_as_it_began() -> None:
    """Which a command that goes on, after a kill, does not say."""
    first = ("fairseq-train", "--restore-file=pre.pt", "--reset-optimizer")
    goes_on = ("fairseq-train", "--restore-file=checkpoint_last.pt", "--continue-once=pre.pt")
    taken = FallbackState(1, {"lr": "0.05"})
    plan = fallbacks.SupervisorPlan(goes_on, state=FallbackState(), first=first)
    assert plan.attempt(plan.state) == list(goes_on)
    assert plan.attempt(taken)[:3] == list(first)
    assert plan.attempt(FallbackState(1, resumes=True))[:3] == list(goes_on)
    # what the attempt that began again has trained is its own
    again = fallbacks.SupervisorPlan(goes_on, state=taken, first=first)
    assert again.attempt(taken)[:3] == list(goes_on)


def test_the_state_of_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert fallbacks.read(tmp_path) == FallbackState()
    state = FallbackState(2, {"lr": "0.1", "fp32": ""}, True, [{"step": 1}], Pending("d", 9, "f"))
    state.write(tmp_path / "run")
    assert fallbacks.read(tmp_path / "run") == state


def test_a_damaged_state_is_one_line_that_says_what_to_remove(tmp_path: Path) -> None:
    (tmp_path / fallbacks.NAME).write_text('{"step": ', encoding="utf-8")
    with pytest.raises(ConfigurationError, match="remove it"):
        fallbacks.read(tmp_path)


STEPS = fallbacks.parse("fp32, lr*0.5")
RECORD: dict[str, Any] = {"update": 30, "attempt": 0, "kind": "loss_spike", "started": 21}


def diverged(run: Path) -> dict[str, Any]:
    """A run that diverged at update 30, with a last good state of update 20; its record."""
    folder = run / "checkpoints"
    make_checkpoint(folder / good_states.LAST_GOOD, 20)
    for name, update in (("last", 30), ("1_20", 20), ("1_30", 30)):
        make_checkpoint(folder / f"checkpoint_{name}.pt", update)
    records.append(run / records.NAME, {"update": 30})
    return {**RECORD, "good": {"update": 20, "file": good_states.LAST_GOOD}}


def test_a_fallback_rolls_the_run_back_to_its_last_good_state(tmp_path: Path) -> None:
    state = fallbacks.take(tmp_path, STEPS, PRESENT, diverged(tmp_path))
    assert state == fallbacks.read(tmp_path)
    # the first step changes nothing: it is fp32 already
    assert (state.step, state.overrides, state.resumes) == (2, {"lr": "0.0005"}, True)
    assert str(state) == "fallback 2: starting again from update 20 with --lr 0.0005"
    (taken,) = state.history
    assert taken["before"] == {"lr": "0.001"}
    assert taken["event"] == {"update": 30, "kind": "loss_spike", "started": 21}
    folder = tmp_path / "checkpoints"
    assert num_updates(load_checkpoint(folder / "checkpoint_last.pt")) == 20
    assert {path.name for path in (folder / "diverged_2").iterdir()} == {
        *("checkpoint_last.pt", "checkpoint_1_30.pt", "monitor.jsonl")
    }
    assert (folder / "checkpoint_1_20.pt").is_file()


def test_without_a_good_state_a_fallback_begins_anew(tmp_path: Path) -> None:
    diverged(tmp_path)
    state = fallbacks.take(tmp_path, STEPS, PRESENT, RECORD)
    assert state is not None
    assert not state.resumes
    assert "starting again from the beginning" in str(state)
    assert not list((tmp_path / "checkpoints").glob("*.pt"))


def test_a_fallback_keeps_on_record_what_the_run_began_with() -> None:
    state = FallbackState(1, {"lr": "0.05"}, resumes=True)
    for given in (["--restore-file", "first.pt"], ["--restore-file=first.pt"]):
        command = state.command(["fairseq-train", "data", *given, "--reset-optimizer"])
        assert command[-3:-1] == ["--restore-file=checkpoint_last.pt", "--continue-once=first.pt"]
        assert "--reset-optimizer" not in command
        again = state.command(command)
        assert sum("--continue-once" in word for word in again) == 1
    plain = state.command(["fairseq-train", "data"])
    assert not any("--continue-once" in word for word in plain)


def test_where_no_step_helps_the_run_is_left_as_it_is_and_not_tried_again(tmp_path: Path) -> None:
    record = diverged(tmp_path)
    assert fallbacks.take(tmp_path, STEPS[:1], PRESENT, record) is None
    assert num_updates(load_checkpoint(tmp_path / "checkpoints" / "checkpoint_last.pt")) == 30
    with pytest.raises(ConfigurationError, match="diverged after the last of 1 steps"):
        fallbacks.refuse_changes(tmp_path, STEPS[:1], PRESENT)
    fallbacks.refuse_changes(tmp_path, STEPS, PRESENT)


def test_a_new_value_of_what_a_fallback_changed_is_refused(tmp_path: Path) -> None:
    taken = {"step": 1, "before": {"lr": "0.1"}, "overrides": {"lr": "0.05"}}
    FallbackState(1, {"lr": "0.05"}, history=[taken]).write(tmp_path)
    for rate in (0.1, 0.05):
        fallbacks.refuse_changes(tmp_path, STEPS, {"lr": [rate]})
    with pytest.raises(ConfigurationError, match=r"--lr 0\.2 contradicts .* remove that file"):
        fallbacks.refuse_changes(tmp_path, STEPS, {"lr": [0.2]})


@pytest.mark.parametrize("moved", ["nothing", "what came after", "everything"])
def test_a_rollback_that_was_killed_half_way_is_finished(tmp_path: Path, moved: str) -> None:
    diverged(tmp_path)
    folder = tmp_path / "checkpoints"
    pending = Pending("diverged_1", 20, good_states.LAST_GOOD)
    FallbackState(1, {"lr": "0.05"}, True, pending=pending).write(tmp_path)
    if moved != "nothing":
        good_states.set_aside(folder, 20, folder / "diverged_1")
    if moved == "everything":
        good_states.copy(folder / good_states.LAST_GOOD, folder / "checkpoint_last.pt")
    for _ in range(2):
        assert fallbacks.roll_back(tmp_path).pending is None
    assert num_updates(load_checkpoint(folder / "checkpoint_last.pt")) == 20
    aside = folder / "diverged_1" / "checkpoint_last.pt"
    assert num_updates(load_checkpoint(aside)) == 30
