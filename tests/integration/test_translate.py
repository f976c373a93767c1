"""`deepnet translate`: a small model translates raw text with both engines."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.corpora.subwords import decode_line, encode_lines, load_model
from fairseq_deepnet.tools.translation import engines
from fairseq_deepnet.tools.translation.translate import add_arguments, open_engine
from tests.support.corpus import write_lines
from tests.support.runs import SENTENCES
from tests.support.shell import Refused
from tests.support.trained import make_trained_run

needs_ctranslate2 = pytest.mark.skipif(
    importlib.util.find_spec("ctranslate2") is None, reason="needs the extra ctranslate2"
)
LINES = ["A dog runs.", "", "Two men play chess in 1 park.", "   ", "An old woman sells flowers."]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    make_trained_run(run, data, encoder_layers=2)
    return run


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "model"
    words = ["--to=ctranslate2", "--quantization=float32", f"--out={folder}"]
    assert cli.main(["export", str(run), *words]) == 0
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "text", LINES)


Translate = Callable[..., Any]


@pytest.fixture
def translate(capsys: pytest.CaptureFixture[str]) -> Translate:
    """Return a function that calls `deepnet translate` in this process."""

    def call(*words: object) -> Any:
        arguments = ["translate", *map(str, words), "--threads", "1"]
        status = cli.main(arguments)
        caught = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, status, caught.out, caught.err)

    return call


@needs_ctranslate2
def test_both_engines_find_the_same_translations_with_the_same_scores(
    run: Path, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # fairseq forbids <pad> after the softmax, and CTranslate2 before it; the scores of an untrained
    # model, which prefers <pad>, would differ
    monkeypatch.setattr(engines, "NEVER", None)
    results = []
    for model in (run, exported):
        words = [str(model), "--beam=4", "--nbest=3", "--lenpen=0.7", "--threads=1"]
        add_arguments(parser := cli.Parser())
        engine, direction, _ = open_engine(parser.parse(words))
        assert direction == Direction("de", "en")
        results.append(engine.hypotheses(SENTENCES, direction))
        assert engine.translate(SENTENCES, direction) == [best[0].text for best in results[-1]]
    for ours, theirs in zip(*results, strict=True):
        assert [best.text for best in ours] == [best.text for best in theirs]
        scores = [best.score for best in theirs]
        assert [best.score for best in ours] == pytest.approx(scores, rel=1e-3)
        assert len({best.text for best in ours}) == 3


def test_a_file_is_translated_line_by_line(
    run: Path, text: Path, tmp_path: Path, translate: Translate
) -> None:
    whole = translate(run, text, "--beam=2")
    assert whole.returncode == 0, whole.stderr
    lines = whole.stdout.split("\n")
    assert len(lines) == len(LINES) + 1
    assert [not line for line in lines] == [False, True, False, True, False, True]
    assert translate(run, text, "--beam=2", f"--out={tmp_path}/out").stdout == ""
    assert (tmp_path / "out").read_text(encoding="utf-8") == whole.stdout
    scored = translate(run, "--beam=2", "--nbest=1", "--window=2", text)  # options before the file
    rows = [line.split("\t") for line in scored.stdout.splitlines()]
    assert [row[0] for row in rows] == list("12345")
    assert [row[2] for row in rows] == lines[:-1]
    assert all(float(row[1]) < 0 for row, line in zip(rows, LINES, strict=True) if line.strip())


def test_a_model_of_bare_fairseq_commands_translates_text_and_tokens(
    tmp_path: Path, run: Path, data: Path, text: Path, translate: Translate
) -> None:
    bare, checkpoint, model = tmp_path / "bin", tmp_path / "model.pt", data / "spm.model"
    bare.mkdir()
    for path in data.glob("dict.*.txt"):
        shutil.copy(path, bare)
    shutil.copy(run / "checkpoints" / "checkpoint_best.pt", checkpoint)
    words = ["--beam=1", f"--data={bare}"]
    expected = translate(run, text, "--beam=1").stdout
    assert translate(checkpoint, text, *words, f"--spm={model}").stdout == expected
    pieces = write_lines(tmp_path / "pieces", encode_lines(load_model(model), LINES, 1))
    tokens = translate(checkpoint, pieces, *words, "--spm=none").stdout.splitlines()
    assert [decode_line(load_model(model), line) for line in tokens] == expected.splitlines()


def test_a_model_for_long_sources_truncates_at_its_own_limit(tmp_path: Path, data: Path) -> None:
    length = {"max_source_positions": 3000}  # fairseq-generate's default is 1,024
    task = {"_name": "translation", "source_lang": "de", "target_lang": "en", **length}
    make_trained_run(tmp_path / "run", data, about=task, **length)
    path = tmp_path / "run" / "checkpoints" / "checkpoint_best.pt"
    engine = engines.Translator(path, DataFolder.open(data), [], cpu=True)
    assert engine.max_positions[0] == 3000


@needs_ctranslate2
def test_a_damaged_export_is_refused(
    exported: Path, tmp_path: Path, text: Path, translate: Translate
) -> None:
    folder = shutil.copytree(exported, tmp_path / "model")
    (folder / "model.bin").write_bytes(b"broken")
    assert "model.bin differs from" in translate(folder, text).stderr
    (folder / "export.json").unlink()
    assert "has no export.json; copy it again, or export" in translate(folder, text).stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["/no/model", "/nowhere"], "there is no text file /nowhere"),
        (["/no/model", "/"], "there is no text file /"),
        (["RUN", "TEXT", "--tgt=fr"], "--tgt fr: the model translates de-en"),
        (["RUN", "TEXT", "--out=/nowhere/out"], "'/nowhere/out'"),
        (["/no/model", "TEXT", "--out=/tmp"], "Not a regular file: '/tmp'"),
        (["RUN", "TEXT", "--beam=0"], "--beam: '0' is not a positive integer"),
        (["RUN", "TEXT", "--lenpen=nan"], "--lenpen: nan is not finite"),
        (["RUN", "TEXT", "--nbest=9"], "--nbest 9 must not exceed --beam 5"),
    ],
    ids=lambda value: "_".join(value[1:]).replace("/", "") if isinstance(value, list) else "",
)
def test_bad_input_is_refused_in_one_line(
    run: Path, text: Path, refused: Refused, words: list[str], message: str
) -> None:
    filled = [word.replace("RUN", str(run)).replace("TEXT", str(text)) for word in words]
    assert message in refused("translate", *filled)


@needs_ctranslate2
def test_an_exported_folder_translates_without_torch_and_fairseq(
    exported: Path, text: Path, translate: Translate
) -> None:
    """Both take seconds to import. -X importtime lists all imports."""
    expected = translate(exported, text, "--beam=2")
    assert "ctranslate2 float32" in expected.stderr
    for option in ("--data=x", "--spm=x"):
        assert "is exported: --data, --spm" in translate(exported, text, option).stderr
    command = [sys.executable, "-X", "importtime", "-m", "fairseq_deepnet.cli", "translate"]
    process = subprocess.run(
        [*command, str(exported), str(text), "--beam=2"],
        capture_output=True,
        encoding="utf-8",
        cwd=Path(__file__).resolve().parents[2],
        timeout=900,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in process.stderr.splitlines()}
    assert "ctranslate2" in imported
    assert not imported & {"torch", "fairseq", "yaml"}
    assert process.stdout == expected.stdout
