"""A run that is stopped and resumed performs the same updates as an uninterrupted run."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq_cli import train as program

from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.preemption import OWED
from tests.integration.conftest import SMALL, TRAIN
from tests.support.corpus import WORDS, binarise, fairseq_preprocess, write_lines
from tests.support.models import slow_but
from tests.support.training import assert_same_checkpoints, train_here

UPDATES = 26
STOPS = (3, 11, 17, 22)
"""Updates after which a run stops; an epoch has 9 updates."""
PAIR = ["--arch=deepnet_transformer", *SMALL, *TRAIN, "--dropout=0.1"]
MANY = [*PAIR, "--task=translation_multi_simple_epoch", "--langs=xx,yy", "--lang-pairs=xx-yy,yy-xx"]
MANY += ["--encoder-langtok=tgt"]


def one_stack(side: str, kind: str, task: str, criterion: str) -> list[str]:
    words = [word for word in SMALL if side in word]
    words += [word for word in TRAIN if "criterion" not in word and "smoothing" not in word]
    words += [f"--arch=deepnet_{kind}", f"--task={task}", f"--criterion={criterion}"]
    return [*words, "--tokens-per-sample=16", "--sample-break-mode=eos"]


CASES: dict[str, list[str]] = {
    "adam, update-freq 2, monitored": [*PAIR, "--update-freq=2", "--monitor-interval=2"],
    "bf16": [*PAIR, "--bf16"],
    "fused_adam, workers": [*PAIR, "--optimizer=fused_adam", "--num-workers=1"],
    "sharded": PAIR,
    "curriculum": [*PAIR, "--curriculum=1"],
    "many directions": [*MANY, "--sampling-method=temperature", "--sampling-temperature=2"],
    "many directions by turns": [*MANY, "--sampling-method=RoundRobin"],
    "language model": one_stack("decoder", "transformer_lm", "language_modeling", "cross_entropy"),
    "masked language model, workers": [
        *one_stack("encoder", "masked_lm", "masked_lm", "masked_lm"),
        "--num-workers=1",
    ],
}
FEW = ("adam, update-freq 2, monitored", "sharded", "curriculum", "many directions")
FEW += ("language model",)
"""Cases that run by default."""


@pytest.fixture(scope="session")
def text_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with one language and 9 batches of 200 tokens."""
    folder = tmp_path_factory.mktemp("text")
    lines = [" ".join(WORDS[row % 7 : row % 7 + 3 + row % 11]) for row in range(190)]
    text = write_lines(folder / "text", lines)
    words = [f"--{split}pref={text}" for split in ("train", "valid")]
    fairseq_preprocess("--only-source", *words, f"--destdir={folder / 'data'}", "--workers=1")
    return folder / "data"


@pytest.fixture(scope="session")
def two_shards(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    other = binarise(tmp_path_factory.mktemp("shard"), lines=160)
    return f"{tiny_data}:{other}"


def train(data: object, save_dir: Path, until: int, *words: str) -> dict[str, Any]:
    """Train like a new process, without the state of previous runs."""
    for function in (checkpoint_utils.save_checkpoint, program.should_stop_early):
        vars(function).pop("best", None)
        vars(function).pop("num_runs", None)
    return train_here(data, save_dir, *words, f"--max-update={until}")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", slow_but(FEW, CASES))
def test_a_run_stopped_four_times_equals_an_uninterrupted_run(
    name: str, tiny_data: Path, two_shards: str, text_data: Path, tmp_path: Path
) -> None:
    words = [*CASES[name], "--disable-validation"]
    data = text_data if "language model" in name else two_shards if name == "sharded" else tiny_data
    whole = train(data, tmp_path / "whole", UPDATES, *words)
    for until in (*STOPS, UPDATES, UPDATES):  # the last start finds a complete run
        stopped = train(data, tmp_path / "stopped", until, *words)
    assert whole["extra_state"]["train_iterator"]["epoch"] >= 2
    assert_same_checkpoints(whole, stopped)
    records = [tmp_path / folder / "monitor.jsonl" for folder in ("whole", "stopped")]
    if "monitored" in name:
        texts = [record.read_text(encoding="utf-8") for record in records]
        assert texts[0] == texts[1]
        assert texts[0].count("\n") == UPDATES // 2


def test_updates_after_the_last_checkpoint_are_repeated(tiny_data: Path, tmp_path: Path) -> None:
    """A kill -9 leaves a checkpoint of the second epoch and loses the updates after it."""
    words = [*PAIR, "--disable-validation", "--monitor-interval=1", "--save-interval-updates=13"]
    whole = train(tiny_data, tmp_path / "whole", UPDATES, *words)
    train(tiny_data, tmp_path / "killed", 16, *words)
    saved = tmp_path / "killed" / "checkpoint_2_13.pt"
    shutil.copy(saved, tmp_path / "killed" / "checkpoint_last.pt")
    killed = train(tiny_data, tmp_path / "killed", UPDATES, *words)
    assert_same_checkpoints(whole, killed)
    texts = [
        (tmp_path / folder / "monitor.jsonl").read_text(encoding="utf-8")
        for folder in ("whole", "killed")
    ]
    assert texts[0] == texts[1]


def test_other_language_tokens_are_refused(tiny_data: Path, tmp_path: Path) -> None:
    train(tiny_data, tmp_path, 1, *MANY)
    with pytest.raises(ConfigurationError, match=r"-langtok=tgt .*not --encoder-langtok=src"):
        train(tiny_data, tmp_path, 2, *MANY, "--encoder-langtok=src")


@pytest.mark.parametrize(("more", "updates"), [([], 6), (["--skip-remainder-batch"], 5)])
def test_an_epoch_ends_once_after_a_change_of_update_freq(
    more: list[str], updates: int, tiny_data: Path, tmp_path: Path
) -> None:
    """After 4 of 9 batches, the others form two groups, with three and two batches."""
    words = [*PAIR, "--disable-validation", "--max-epoch=1", *more]
    train(tiny_data, tmp_path, 4, *words)
    ended = train(tiny_data, tmp_path, UPDATES, *words, "--update-freq=3")
    assert ended["optimizer_history"][-1]["num_updates"] == updates
    assert ended["extra_state"]["train_iterator"]["epoch"] == 2


def test_the_rest_of_an_epoch_is_trained_in_larger_batches(tiny_data: Path, tmp_path: Path) -> None:
    """An epoch has 20 batches of 100 tokens, with more padding than in its 11 batches of 160."""
    words = [*PAIR, "--disable-validation", "--max-epoch=1"]
    train(tiny_data, tmp_path, 19, *words, "--max-tokens=100")
    ended = train(tiny_data, tmp_path, UPDATES, *words, "--max-tokens=160")
    assert ended["optimizer_history"][-1]["num_updates"] == 20


def test_masks_are_redrawn_in_each_epoch_even_by_workers(
    text_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fairseq's workers would keep the masks of the epoch in which they started."""
    seen: list[list[str]] = []
    begin, step = program.Trainer.begin_epoch, program.Trainer.train_step

    def noted_begin(self: Any, epoch: int) -> None:
        seen.append([])
        begin(self, epoch)

    def noted_step(self: Any, samples: Any, *args: Any) -> Any:
        seen[-1] += [str(sample["net_input"]["src_tokens"].tolist()) for sample in samples]
        return step(self, samples, *args)

    monkeypatch.setattr(program.Trainer, "begin_epoch", noted_begin)
    monkeypatch.setattr(program.Trainer, "train_step", noted_step)
    words = [*CASES["masked language model, workers"], "--disable-validation", "--max-epoch=2"]
    train(text_data, tmp_path, UPDATES * 2, *words)
    assert len(seen[0]) == len(seen[1]) > 1
    assert not set(seen[0]) & set(seen[1])


def test_patience_counts_validations_before_the_interruption(
    tiny_data: Path, tmp_path: Path
) -> None:
    """With a learning rate of 0, no validation improves, so patience 2 ends the run after three."""
    words = [*PAIR, "--lr=0", "--patience=2", "--validate-interval-updates=2"]
    whole = train(tiny_data, tmp_path / "whole", UPDATES, *words)
    train(tiny_data, tmp_path / "stopped", 4, *words)
    stopped = train(tiny_data, tmp_path / "stopped", UPDATES, *words)
    # patience has already ended the run
    again = train(tiny_data, tmp_path / "stopped", UPDATES, *words)
    states = (whole, stopped, again)
    updates = [state["optimizer_history"][-1]["num_updates"] for state in states]
    assert updates == [6, 6, 6]


def test_an_overflow_does_not_repeat_the_validation_before_it(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a learning rate of 0, patience 2 ends the run after the validation at update 6."""
    attempts, clip = itertools.count(1), program.Trainer.clip_grad_norm

    def overflow(self: Any, norm: float) -> Any:
        if next(attempts) in (3, 4):
            raise OverflowError
        return clip(self, norm)

    monkeypatch.setattr(program.Trainer, "clip_grad_norm", overflow)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    words = [*PAIR, "--lr=0", "--patience=2", "--validate-interval-updates=2"]
    state = train(tiny_data, tmp_path, UPDATES, *words)
    assert state["optimizer_history"][-1]["num_updates"] == 6


def test_fine_tuning_inherits_no_validation_and_no_patience(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*PAIR, "--lr=0", "--patience=1", "--validate-interval-updates=2"]
    begun = train(tiny_data, tmp_path / "begun", 2, *words)
    begun["extra_state"][OWED] = {"epoch": 1, "end_of_epoch": True}
    torch.save(begun, tmp_path / "begun.pt")
    validated: list[int] = []
    validate = program.validate

    def noted(cfg: Any, trainer: Any, *rest: Any) -> Any:
        validated.append(trainer.get_num_updates())
        return validate(cfg, trainer, *rest)

    monkeypatch.setattr(program, "validate", noted)
    words += [f"--finetune-from-model={tmp_path / 'begun.pt'}"]
    tuned = train(tiny_data, tmp_path / "tuned", UPDATES, *words)
    assert validated == [2, 4]  # the second is not better than the first
    assert tuned["optimizer_history"][-1]["num_updates"] == 4


@pytest.mark.parametrize("optimizer", ["adam", "fused_adam"])
def test_new_optimizer_options_apply_after_resuming(
    optimizer: str, tiny_data: Path, tmp_path: Path
) -> None:
    words = [*PAIR, f"--optimizer={optimizer}", "--lr-scheduler=reduce_lr_on_plateau"]
    words += ["--disable-validation", "--weight-decay=0.01"]
    train(tiny_data, tmp_path, 2, *words, "--lr=0.004")
    words += ["--adam-eps=1e-5", "--adam-betas=(0.8, 0.9)"]
    state = train(tiny_data, tmp_path, 3, *words, "--lr=0.002")
    (group,) = state["last_optimizer_state"]["param_groups"]
    # the learning rate is the schedule's, which follows --lr
    expected = {"lr": 0.002, "betas": (0.8, 0.9), "eps": 1e-5, "weight_decay": 0.01}
    assert {name: group[name] for name in expected} == expected
    # other values come from the checkpoint, and --optimizer-overrides has precedence
    state["last_optimizer_state"]["param_groups"][0]["lr"] = 0.0001
    torch.save(state, tmp_path / "checkpoint_last.pt")
    words[-1] = "--adam-betas=(0.7, 0.9)"
    state = train(
        tiny_data, tmp_path, 4, *words, "--lr=0.002", "--optimizer-overrides={'betas': (0.6, 0.9)}"
    )
    (group,) = state["last_optimizer_state"]["param_groups"]
    assert (group["lr"], group["betas"]) == (0.0001, (0.6, 0.9))


def test_restarting_a_run_after_its_stop_time_performs_no_update(
    tiny_data: Path, tmp_path: Path
) -> None:
    """Fine-tuning counts its own hours."""
    words = [*PAIR, "--disable-validation", "--stop-time-hours=1"]
    begun = train(tiny_data, tmp_path / "begun", 2, *words)
    begun["extra_state"]["previous_training_time"] = 3601.0
    last = tmp_path / "begun" / "checkpoint_last.pt"
    torch.save(begun, last)
    again = train(tiny_data, tmp_path / "begun", 4, *words)
    tuned = train(tiny_data, tmp_path / "tuned", 4, *words, f"--finetune-from-model={last}")
    updates = [state["optimizer_history"][-1]["num_updates"] for state in (again, tuned)]
    assert updates == [2, 4]
