"""`deepnet perplexity` with fake fairseq commands."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_deepnet import cli
from fairseq_deepnet.checkpoints import save_checkpoint
from fairseq_deepnet.records import sha256
from tests.support.runs import SENTENCES
from tests.support.shell import FakeBin

TASKS: dict[str, dict[str, Any]] = {
    "language_modeling": {"sample_break_mode": "eos", "tokens_per_sample": 64},
    "masked_lm": {"mask_prob": 0.15},
    "translation": {},
}


def make_run(folder: Path, task: str, tokens: int = 30) -> Path:
    """Write a run folder with a checkpoint for this task, and its data folder."""
    data = folder / "data"
    (data / "text").mkdir(parents=True)
    (data / "text" / "test.en").write_text("\n".join([*SENTENCES, ""]), encoding="utf-8")
    for name in ("test.bin", "dict.txt"):
        (data / name).write_text(name, encoding="utf-8")
    counts = {"lines": {"test": 4}, "binarised": {"test": {"tokens": tokens}}}
    counts["files"] = {"text/test.en": sha256(data / "text" / "test.en")}
    (data / "corpus.json").write_text(json.dumps({"language": "en"} | counts), encoding="utf-8")
    run = folder / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.yaml").write_text(f"task: {task}\nrecipe:\n  data: {data}\n", encoding="utf-8")
    state = {
        "cfg": {"model": Namespace(), "task": Namespace(_name=task, **TASKS[task])},
        "model": {"weight": torch.ones(2)},
        "optimizer_history": [{"num_updates": 20}],
    }
    save_checkpoint(state, run / "checkpoints" / "checkpoint_best.pt")
    return run


Command = Callable[..., Any]


@pytest.fixture
def perplexity(
    fake_bin: FakeBin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Return a function that calls `deepnet perplexity` on the CPU."""
    monkeypatch.setenv("PATH", fake_bin.path())

    def call(*words: str | Path) -> Any:
        status = cli.main(["perplexity", "--gpus", "0", *map(str, words)])
        return status, *capsys.readouterr()

    return call


@pytest.mark.parametrize(
    ("task", "words", "printed", "message"),
    [
        ("translation", [], "", "is not a language model; run deepnet evaluate"),
        ("language_modeling", ["--split=dev"], "", "has no monolingual dev text"),
        ("language_modeling", [], "nothing", "fairseq-eval-lm ended with status 0: nothing"),
        ("language_modeling", [], "Evaluated 9 tokens\nLoss (base 2): 3, Perplexity: 8", "9 of 30"),
    ],
)
def test_an_error_is_one_line_and_leaves_no_score(
    fake_bin: FakeBin,
    perplexity: Command,
    tmp_path: Path,
    task: str,
    words: list[str],
    printed: str,
    message: str,
) -> None:
    run = make_run(tmp_path, task)
    fake_bin.add("fairseq-eval-lm", stdout=printed)
    status, _, errors = perplexity(*words, run)
    assert status == 2
    assert message in errors.splitlines()[-1]
    assert not (run / "scores").exists()


def test_a_measurement_with_other_options_has_a_record_of_its_own(
    fake_bin: FakeBin, perplexity: Command, tmp_path: Path
) -> None:
    run = make_run(tmp_path, "language_modeling")
    fake_bin.add("fairseq-eval-lm", stdout="Loss (base 2): 3.0000, Perplexity: 8.00\n")
    assert [perplexity(run, *words)[0] for words in ([], ["--", "--context-window=8"])] == [0, 0]
    assert len(list((run / "scores").glob("*.json"))) == 2
    (tmp_path / "data" / "text" / "test.en").write_text("A dog.\n", encoding="utf-8")
    assert "test.en differs from the file recorded" in perplexity(run, "--", "--cpu")[2]


def test_a_masked_perplexity_names_the_share_of_masks_and_the_skipped_lines(
    fake_bin: FakeBin, perplexity: Command, tmp_path: Path
) -> None:
    fake_bin.add("fairseq-validate", stdout='1 samples have invalid sizes\n{"test_loss": "3.000"}')
    output = perplexity(make_run(tmp_path, "masked_lm"), "--", "--mask-prob=0.4")[1]
    assert "(40 %) subword (3.000 bits): test, 4 lines (1 too long and skipped), 30" in output
