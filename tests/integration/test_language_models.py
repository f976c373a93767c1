"""An LM and a masked LM from raw text to a perplexity, with fairseq's own commands."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch

from fairseq_deepnet import cli
from fairseq_deepnet.files import PACKAGE
from fairseq_deepnet.tools.corpora.subwords import load_model
from fairseq_deepnet.tools.evaluation import perplexity
from tests.integration.conftest import RunCommand
from tests.support.runs import SENTENCES
from tests.support.shell import run_script

SIZES = {"embed-dim": 16, "ffn-embed-dim": 16, "attention-heads": 2}
KINDS = {"lm": "decoder", "masked_lm": "encoder"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    (folder / "raw.en").write_text("".join(f"{line}\n" for line in SENTENCES * 8), encoding="utf-8")
    words = [f"--{split}={folder / 'raw'}" for split in ("train", "valid", "test")]
    out = folder / "data"
    words += [f"--out={out}", "--vocab-size=60", "--lang-code=en"]
    assert cli.main(["preprocess", "language", *words]) == 0
    return out


def train(kind: str, run: Path, data: Path) -> subprocess.CompletedProcess[str]:
    """Train a small model for two updates with the recipe's config."""
    side = KINDS[kind]
    words = [f"--{side}-{name}={value}" for name, value in SIZES.items()]
    words += [f"--{side}-layers=2", "--max-tokens=256", "--max-update=2", "--log-interval=1"]
    words += ["--total-num-update=2", "--warmup-updates=1", "--save-interval-updates=1"]
    env = {"RUN": str(run), "DATA": str(data), "GPUS": "0", "THREADS": "1"}
    return run_script(
        *("train.sh", f"multi30k_{kind}", *words), env=env, cwd=run.parent, timeout=600
    )


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the run folder of each kind, trained by scripts/train.sh."""
    folders = {}
    for kind in KINDS:
        folders[kind] = tmp_path_factory.mktemp(kind) / "run"
        process = train(kind, folders[kind], data)
        assert process.returncode == 0, process.stdout + process.stderr
        assert "2L, deepnorm" in process.stderr
        assert "update 2/2" in process.stdout
    return folders


@pytest.mark.parametrize("kind", KINDS)
def test_the_perplexity_equals_that_of_fairseqs_validation_and_is_recorded(
    kind: str,
    runs: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = runs[kind]
    words = ["perplexity", str(run), "--gpus", "0", "--split", "valid"]
    assert cli.main([*words, "--batch=300"]) == 0
    measured = capsys.readouterr().out
    monkeypatch.setattr(perplexity, "measure", None)  # the second call reads the record
    assert cli.main(words) == 0
    assert capsys.readouterr().out == measured
    scores = json.loads(
        (run / "scores" / "valid.checkpoint_best.perplexity.json").read_text(encoding="utf-8")
    )
    assert (scores["updates"], scores["lines"]) == (2, 32)
    state = torch.load(run / "checkpoints" / "checkpoint_best.pt", weights_only=True)
    assert scores["bits"] == pytest.approx(state["extra_state"]["best"], abs=0.002)
    assert measured.startswith(f"perplexity {scores['perplexity']:.2f} per ")
    assert scores["perplexity"] == pytest.approx(2 ** scores["bits"])
    if kind == "lm":
        words = sum(len(line.split()) + 1 for line in SENTENCES * 8)
        per_word = 2 ** (scores["bits"] * scores["tokens"] / words)
        assert scores["word_perplexity"] == pytest.approx(per_word)


def test_the_language_model_continues_typed_text(
    runs: dict[str, Path], data: Path, tmp_path: Path, run_command: RunCommand
) -> None:
    options = ["--user-dir", str(PACKAGE), "--task", "language_modeling"]
    options += ["--path", runs["lm"] / "checkpoints" / "checkpoint_best.pt", "--cpu"]
    options += ["--beam", 2, "--nbest", 2, "--max-len-b", 8]
    encoded = load_model(data / "spm.model").encode(["Two men", "A dog"], out_type=str)
    lines = [" ".join(pieces) for pieces in encoded]
    process = run_command(
        "fairseq-interactive", data, *options, cwd=tmp_path, stdin="".join(f"{x}\n" for x in lines)
    )
    assert process.returncode == 0, process.stderr
    outputs = re.findall(r"^H-(\d)\t\S+\t(.*)$", process.stdout, re.MULTILINE)
    assert [number for number, _ in outputs] == ["0", "0", "1", "1"]
    for number, text in outputs:
        assert text.startswith(lines[int(number)])
