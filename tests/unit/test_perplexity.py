"""`deepnet perplexity`, with fairseq commands that are not the real ones."""

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
from tests.support.runs import SENTENCES
from tests.support.shell import FakeBin

TASKS: dict[str, dict[str, Any]] = {
    "language_modeling": {"sample_break_mode": "eos", "tokens_per_sample": 64},
    "masked_lm": {"mask_prob": 0.15, "seed": 1},
    "translation": {},
}


def make_run(folder: Path, task: str, tokens: int = 30) -> Path:
    """A run folder with a checkpoint of this task, and its data folder."""
    data = folder / "data"
    (data / "text").mkdir(parents=True)
    (data / "text" / "test.en").write_text(
        "".join(f"{line}\n" for line in SENTENCES), encoding="utf-8"
    )
    for name in ("test.bin", "dict.txt"):
        (data / name).write_text(name, encoding="utf-8")
    counts = {"lines": {"test": 4}, "binarised": {"test": {"tokens": tokens}}}
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


def option(call: list[str], name: str) -> str:
    return call[call.index(name) + 1]


Command = Callable[..., Any]


@pytest.fixture
def perplexity(
    fake_bin: FakeBin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Calls `deepnet perplexity` on the CPU; returns status, output and errors."""
    monkeypatch.setenv("PATH", fake_bin.path())

    def call(*words: str | Path) -> Any:
        status = cli.main(["perplexity", "--gpus", "0", *map(str, words)])
        return status, *capsys.readouterr()

    return call


def test_a_language_model_is_measured_as_it_was_trained_and_only_once(
    fake_bin: FakeBin, perplexity: Command, tmp_path: Path
) -> None:
    run = make_run(tmp_path, "language_modeling")
    said = "Evaluated 30 tokens in 1s\nLoss (base 2): 3.0000, Perplexity: 8.00\n"
    fake_bin.add("fairseq-eval-lm", stdout=said)
    status, first, errors = perplexity(run)
    assert status == 0, errors
    (call,) = fake_bin.calls("fairseq-eval-lm")
    assert call[0] == str(tmp_path / "data")
    assert option(call, "--path") == str(run / "checkpoints" / "checkpoint_best.pt")
    assert (option(call, "--sample-break-mode"), option(call, "--tokens-per-sample")) == (
        *("eos", "64"),
    )
    assert (option(call, "--gen-subset"), "--cpu" in call) == ("test", True)
    words = sum(len(line.split()) + 1 for line in SENTENCES)
    assert first == (
        f"perplexity 8.00 per subword (3.000 bits), {2 ** (90 / words):.2f} per word: test, 4"
        f" lines, 30 subwords, {run}/checkpoints/checkpoint_best.pt (update 20)\n"
    )
    record = json.loads(
        (run / "scores" / "test.checkpoint_best.perplexity.json").read_text(encoding="utf-8")
    )
    assert (record["perplexity"], record["updates"], record["words"]) == (8.0, 20, words)
    assert perplexity(run)[:2] == (0, first)
    assert len(fake_bin.calls("fairseq-eval-lm")) == 1


def test_a_masked_model_is_validated_and_no_perplexity_of_words_is_claimed(
    fake_bin: FakeBin, perplexity: Command, tmp_path: Path
) -> None:
    run = make_run(tmp_path, "masked_lm")
    line = '2026 | INFO | test | {"epoch": null, "test_loss": "4.000", "test_ppl": "16"}\n'
    fake_bin.add("fairseq-validate", stdout=line)
    status, printed, errors = perplexity("--batch", "99", run, "--", "--seed", "7")
    assert status == 0, errors
    (call,) = fake_bin.calls("fairseq-validate")
    assert (option(call, "--task"), option(call, "--valid-subset")) == ("masked_lm", "test")
    assert (option(call, "--max-tokens"), call[-2:]) == ("99", ["--seed", "7"])
    assert printed.startswith("perplexity 16.00 per masked (15 %) subword (4.000 bits)")
    assert "per word" not in printed


SHORT = "Evaluated 29 tokens in 1s\nLoss (base 2): 3.0000, Perplexity: 8.00\n"


@pytest.mark.parametrize(
    ("task", "words", "printed", "message"),
    [
        ("translation", [], "", "is no language model; run deepnet evaluate"),
        ("language_modeling", ["--split=dev"], "", "has no dev text of one language"),
        ("language_modeling", [], "nothing", "fairseq-eval-lm ended with status 0: nothing"),
        ("language_modeling", [], SHORT, "did not read all 30 tokens of test: it leaves out lines"),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_leaves_no_score(
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
