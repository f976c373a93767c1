"""`deepnet translate` and ENGINE=ctranslate2: a small model on both engines, from text to text."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.checkpoints import save_checkpoint
from fairseq_deepnet.tools.corpora.folder import Direction
from fairseq_deepnet.tools.corpora.subwords import decode_line, encode_lines, load_model
from fairseq_deepnet.tools.translation import engines
from fairseq_deepnet.tools.translation.translate import add_arguments, open_engine
from tests.support.runs import SENTENCES, make_data
from tests.support.trained import make_trained_run, trained

needs_ctranslate2 = pytest.mark.skipif(
    importlib.util.find_spec("ctranslate2") is None, reason="needs the extra ctranslate2"
)
ENGINES = ["fairseq", pytest.param("ctranslate2", marks=needs_ctranslate2)]
LINES = ["A dog runs.", "", "Two men play chess in 1 park.", "   ", "An old woman sells flowers."]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "corpus")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    make_trained_run(run, data, encoder_layers=2)
    return run


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


def parsed(*words: str) -> argparse.Namespace:
    """The arguments of `deepnet translate`."""
    add_arguments(parser := cli.Parser())
    return parser.parse(words)


Translate = Callable[..., Any]


@pytest.fixture
def translate(capsys: pytest.CaptureFixture[str]) -> Translate:
    """Calls `deepnet translate` and gives back the results of a process."""

    def call(*words: object) -> Any:
        arguments = ["translate", *map(str, words), "--threads", "1"]
        status = cli.main(arguments)
        caught = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, status, caught.out, caught.err)

    return call


@needs_ctranslate2
def test_both_engines_find_the_same_translations_with_the_same_scores(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # fairseq forbids <pad> after the softmax and CTranslate2 before: to an untrained model, which
    # would write it, that is a difference
    monkeypatch.setattr(engines, "NEVER", None)
    words = [str(run), "--beam=4", "--nbest=3", "--lenpen=0.7", "--threads=1"]
    found = []
    for more in (["--engine=fairseq"], ["--engine=ctranslate2", "--quantization=float32"]):
        opened, direction, _ = open_engine(parsed(*words, *more))
        assert direction == Direction("de", "en")
        found.append(opened.hypotheses(SENTENCES, direction))
        assert opened.translate(SENTENCES, direction) == [best[0].text for best in found[-1]]
    for ours, theirs in zip(*found, strict=True):
        assert [one.text for one in ours] == [one.text for one in theirs]
        assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], rel=1e-3)
        assert len({one.text for one in ours}) == 3


@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_is_translated_line_by_line(
    engine: str, run: Path, text: Path, tmp_path: Path, translate: Translate
) -> None:
    whole = translate(run, text, "--engine", engine, "--beam=2")
    assert whole.returncode == 0, whole.stderr
    lines = whole.stdout.split("\n")
    assert len(lines) == len(LINES) + 1
    assert [not line for line in lines] == [False, True, False, True, False, True]
    kept = translate(run, text, f"--engine={engine}", "--beam=2", f"--out={tmp_path}/out")
    assert kept.stdout == ""
    assert (tmp_path / "out").read_text(encoding="utf-8") == whole.stdout
    before = translate(run, "--beam=2", f"--engine={engine}", text)  # options before the file
    assert before.stdout == whole.stdout
    scored = translate(run, text, f"--engine={engine}", "--beam=2", "--scores", "--window=2")
    rows = [line.split("\t") for line in scored.stdout.splitlines()]
    assert [row[1] for row in rows] == lines[:-1]
    assert all(float(row[0]) < 0 for row, line in zip(rows, LINES, strict=True) if line.strip())


def test_a_model_of_bare_fairseq_commands_translates_with_its_sentencepiece_model(
    tmp_path: Path, run: Path, data: Path, text: Path, translate: Translate
) -> None:
    bare, checkpoint = tmp_path / "bin", tmp_path / "model.pt"
    bare.mkdir()
    for path in data.glob("dict.*.txt"):
        shutil.copy(path, bare)
    _, state = trained(data=data, encoder_layers=2)
    save_checkpoint(state, checkpoint)
    words = (checkpoint, text, "--beam=1", f"--data={bare}", "--gpus=0")
    refused = translate(*words)
    assert refused.returncode == 2
    assert "for data written by fairseq-preprocess give its sentencepiece model: --spm" in (
        refused.stderr
    )
    expected = translate(run, text, "--beam=1")
    assert translate(*words, f"--spm={data / 'spm.model'}").stdout == expected.stdout
    pieces = tmp_path / "pieces"
    encoded = encode_lines(load_model(data / "spm.model"), LINES, 1)
    pieces.write_text("".join(f"{line}\n" for line in encoded), encoding="utf-8")
    tokens = translate(checkpoint, pieces, "--beam=1", f"--data={bare}", "--spm=none").stdout
    decoded = decode_lines(tokens.splitlines(), data)
    assert decoded == expected.stdout.splitlines()


def decode_lines(lines: list[str], data: Path) -> list[str]:
    model = load_model(data / "spm.model")
    return [decode_line(model, line) for line in lines]


@needs_ctranslate2
def test_an_exported_folder_is_all_that_is_needed(
    tmp_path: Path, data: Path, text: Path, translate: Translate
) -> None:
    run = tmp_path / "run"
    make_trained_run(run, data)
    expected = translate(run, text, "--engine=ctranslate2", "--beam=2").stdout
    folder = (run / "export" / "ctranslate2-int8").rename(tmp_path / "model")
    found = translate(folder, text, "--beam=2")
    assert found.stdout == expected
    assert "ctranslate2 int8" in found.stderr
    for option in (f"--data={data}", "--engine=fairseq"):
        assert "is exported for CTranslate2: name the run" in translate(folder, text, option).stderr
    assert "cannot be loaded: " in translate(folder, text, "--quantization=x").stderr
    (folder / "model.bin").write_bytes(b"broken")
    assert "model.bin differs from" in translate(folder, text).stderr
    (folder / "export.json").unlink()
    assert "deepnet export --to ctranslate2" in translate(folder, text).stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUN", "/nowhere"], "there is no file /nowhere"),
        (["RUN", "TEXT", "--tgt=fr"], "--tgt fr: the model translates de-en"),
        (["RUN", "TEXT", "--quantization=int8"], "--quantization is CTranslate2's"),
        (["RUN", "TEXT", "--out=TEXT"], "is the input"),
        (["RUN", "TEXT", "--out=/nowhere/out"], "/nowhere/out.part"),
        (["RUN", "TEXT", "--nbest=9"], "--nbest 9 of a beam of 5"),
        pytest.param(
            ["RUN", "TEXT", "--bf16", "--engine=ctranslate2"],
            "computes as --quantization",
            marks=needs_ctranslate2,
        ),
    ],
    ids=lambda value: "_".join(value[1:]).replace("/", "") if isinstance(value, list) else "",
)
def test_bad_input_is_refused_in_one_line(
    run: Path, text: Path, translate: Translate, words: list[str], message: str
) -> None:
    filled = [word.replace("RUN", str(run)).replace("TEXT", str(text)) for word in words]
    found = translate(*filled)
    assert found.returncode == 2
    assert found.stdout == ""
    (error,) = [line for line in found.stderr.splitlines() if "error:" in line]
    assert message in error


@needs_ctranslate2
def test_an_exported_folder_is_translated_without_torch_and_fairseq(
    run: Path, text: Path, translate: Translate
) -> None:
    """They take seconds to import; -X importtime lists whatever is."""
    expected = translate(run, text, "--engine=ctranslate2", "--beam=2").stdout
    folder = run / "export" / "ctranslate2-int8"
    command = [sys.executable, "-X", "importtime", "-m", "fairseq_deepnet.cli", "translate"]
    found = subprocess.run(
        [*command, str(folder), str(text), "--beam=2"],
        capture_output=True,
        encoding="utf-8",
        cwd=Path(__file__).resolve().parents[2],
        timeout=900,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in found.stderr.splitlines()}
    assert "ctranslate2" in imported
    assert not imported & {"torch", "fairseq", "yaml"}
    assert found.stdout == expected
