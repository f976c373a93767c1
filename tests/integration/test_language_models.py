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
    """Two updates of a small model by the config that the recipe uses."""
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
    """The run folder of each kind, trained by scripts/train.sh."""
    found = {}
    for kind in KINDS:
        found[kind] = tmp_path_factory.mktemp(kind) / "run"
        done = train(kind, found[kind], data)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "2L, deepnorm" in done.stderr
        assert "update 2/2" in done.stdout
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_carries_the_scheme_of_its_one_stack(kind: str, runs: dict[str, Path]) -> None:
    held = torch.load(runs[kind] / "checkpoints" / "checkpoint_best.pt", weights_only=True)
    record = held["cfg"]["model"].residual_record
    assert record["scheme"] == "deepnorm"
    assert record["depths"] == {"lm": [0, 2], "masked_lm": [2, 0]}[kind]
    assert record["alphas"] == {KINDS[kind]: pytest.approx(2**0.5)}


@pytest.mark.parametrize("kind", KINDS)
def test_the_perplexity_is_that_of_fairseqs_own_validation(
    kind: str, runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs[kind]
    assert cli.main(["perplexity", str(run), "--gpus", "0", "--split", "valid"]) == 0
    measured = capsys.readouterr().out
    scores = json.loads(
        (run / "scores" / "valid.checkpoint_best.perplexity.json").read_text(encoding="utf-8")
    )
    assert (scores["updates"], scores["lines"]) == (2, 32)
    held = torch.load(run / "checkpoints" / "checkpoint_best.pt", weights_only=True)
    assert scores["bits"] == pytest.approx(held["extra_state"]["best"], abs=0.002)
    assert measured.startswith(f"perplexity {scores['perplexity']:.2f} per ")
    assert scores["perplexity"] == pytest.approx(2 ** scores["bits"])
    if kind == "lm":
        words = sum(len(line.split()) + 1 for line in SENTENCES * 8)
        per_word = 2 ** (scores["bits"] * scores["tokens"] / words)
        assert scores["word_perplexity"] == pytest.approx(per_word)


def test_the_language_model_goes_on_from_what_is_typed(
    runs: dict[str, Path], data: Path, tmp_path: Path, run_command: RunCommand
) -> None:
    options = ["--user-dir", str(PACKAGE), "--task", "language_modeling"]
    options += ["--path", runs["lm"] / "checkpoints" / "checkpoint_best.pt", "--cpu"]
    options += ["--beam", 2, "--nbest", 2, "--max-len-b", 8]
    typed = load_model(data / "spm.model").encode(["Two men", "A dog"], out_type=str)
    lines = [" ".join(pieces) for pieces in typed]
    done = run_command(
        "fairseq-interactive", data, *options, cwd=tmp_path, stdin="".join(f"{x}\n" for x in lines)
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^H-(\d)\t\S+\t(.*)$", done.stdout, re.MULTILINE)
    assert [number for number, _ in found] == ["0", "0", "1", "1"]
    for number, text in found:
        assert text.startswith(lines[int(number)])
