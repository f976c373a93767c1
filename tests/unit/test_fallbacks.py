"""--fallbacks: its grammar, and what its steps make of a training's options."""

from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet.divergence import attempts, fallbacks
from fairseq_deepnet.divergence.fallbacks import Change
from fairseq_deepnet.errors import ConfigurationError

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
    made = [fallbacks.overrides(step, PRESENT) for step in fallbacks.parse(fallbacks.DEFAULT)]
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
        fallbacks.check(fallbacks.parse(text), PRESENT)
    assert says in str(refused.value)


def test_whole_numbers_stay_whole_and_lists_are_changed_in_each_member() -> None:
    (step,) = fallbacks.parse("update-freq*1.5 lr*0.1")
    present = {"update_freq": [1, 3], "lr": [0.5, 0.25]}
    assert fallbacks.overrides(step, present) == {"update-freq": "2,4", "lr": "0.05,0.025"}


def test_a_step_that_changes_nothing_does_not_help() -> None:
    (fp32,), (lr,) = fallbacks.parse("fp32"), fallbacks.parse("lr=0.001")
    assert not fallbacks.that_help(fp32, PRESENT, 0)
    assert fallbacks.that_help(fp32, {**PRESENT, "bf16": True}, 0) == fp32
    assert not fallbacks.that_help(lr, PRESENT, 0)
    assert fallbacks.that_help(lr, {**PRESENT, "lr": [0.1]}, 0) == lr


def test_a_warm_up_that_is_over_is_not_lengthened() -> None:
    (step,) = fallbacks.parse("lr*0.5 warmup-updates+1000")
    present = {"lr": [0.1], "warmup_updates": 100}
    assert fallbacks.that_help(step, present, 0) == step
    assert fallbacks.that_help(step, present, 99) == step
    assert fallbacks.that_help(step, present, 100) == step[:1]


def test_the_state_of_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert attempts.read(tmp_path) == attempts.Attempts()
    state = attempts.Attempts(2, {"lr": "0.1", "fp32": ""}, True, 1, [{"step": 1}])
    state.write(tmp_path / "run")
    assert attempts.read(tmp_path / "run") == state


def test_a_damaged_state_is_one_line_that_says_what_to_remove(tmp_path: Path) -> None:
    (tmp_path / attempts.NAME).write_text('{"step": ', encoding="utf-8")
    with pytest.raises(ConfigurationError, match="remove it"):
        attempts.read(tmp_path)
