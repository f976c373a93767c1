"""scripts/preprocess_multilingual.sh and its Multi30k recipe: usage, and what a kill loses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairseq_deepnet.tools.corpora.published import multi30k
from tests.support.runs import SENTENCES

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data" / "multi30k"
SCRIPT = ROOT / "scripts" / "preprocess_multilingual.sh"


def environment(**variables: object) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    told = {name: str(value) for name, value in variables.items()}
    return os.environ | {"DEEPNET_SKIP_SETUP": "1", "WORKERS": "1", "PATH": path} | told


def preprocess(**variables: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT)], env=environment(**variables), capture_output=True, encoding="utf-8"
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for language in ("en", "xx", "yy"):
        text = "".join(f"{line} {language}\n" for line in SENTENCES * 5)
        (tmp_path / f"raw.{language}").write_text(text, encoding="utf-8")
    rows = [
        f"{split}\ten\t{other}\t{tmp_path}/raw\n"
        for other in ("xx", "yy")
        for split in ("train", "valid", "test")
    ]
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(rows), encoding="utf-8")
    return path


def kill_at(marker: str, **variables: object) -> None:
    """Run the script and kill it, with all that it started, when it prints `marker`."""
    process = subprocess.Popen(
        ["bash", str(SCRIPT)],
        env=environment(**variables),
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if marker in line:
            break
    else:
        pytest.fail(f"the script ended without {marker!r}")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()


def test_a_run_killed_at_any_stage_goes_on_to_the_same_folder(table: Path, tmp_path: Path) -> None:
    whole = preprocess(TABLE=table, OUT=tmp_path / "whole", VOCAB_SIZE=70)
    assert whole.returncode == 0, whole.stderr
    variables = {"TABLE": table, "OUT": tmp_path / "out", "VOCAB_SIZE": 70}
    for marker in ("cleaning: 2/6", "training bpe", "binarising: 3/6"):
        kill_at(marker, **variables)
        assert not (tmp_path / "out").exists()
    again = preprocess(**variables)
    assert again.returncode == 0, again.stderr
    assert "checking and cleaning the text: done before" in again.stderr
    assert "training subwords: done before" in again.stderr
    for path in (tmp_path / "whole").rglob("*"):
        if path.is_file() and path.name != "corpus.json":
            other = tmp_path / "out" / path.relative_to(tmp_path / "whole")
            assert other.read_bytes() == path.read_bytes(), path
    assert not list(tmp_path.glob("out.*"))


@pytest.mark.parametrize(
    ("variables", "cause"),
    [
        ({}, "TABLE is not set"),
        ({"TABLE": "absent.tsv"}, "OUT is not set"),
        ({"TABLE": "absent.tsv", "OUT": "x"}, "TABLE=absent.tsv is not a file"),
        ({"TABLE": str(SCRIPT), "OUT": "x", "VOCAB_SIZE": "many"}, "VOCAB_SIZE is 'many'"),
        ({"TABLE": str(SCRIPT), "OUT": "x", "FORCE": "yes"}, "FORCE is 'yes'"),
    ],
)
def test_bad_usage_is_one_line(variables: dict[str, str], cause: str) -> None:
    done = preprocess(**variables)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert cause in done.stderr


@pytest.mark.parametrize("languages", ["de fr", "en", "en nl", "de en de"])
def test_the_languages_of_multi30k_are_checked(languages: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / "preprocess_multi30k_multilingual.sh")],
        env=environment(LANGS=languages, RAW=tmp_path, OUT=tmp_path / "out"),
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 2
    assert "LANGS is" in done.stderr or "no language 'nl'" in done.stderr


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs Multi30k in ../shared/data")
def test_multi30k_becomes_six_trained_and_six_zero_shot_directions() -> None:
    rows = multi30k.pairs(SimpleNamespace(langs="cs de en fr"), lambda languages: SHARED)
    pairs = {split: {row.pair for row in rows if row.split == split} for split, *_ in rows}
    assert pairs["train"] == pairs["valid"] == {("cs", "en"), ("de", "en"), ("en", "fr")}
    assert pairs["test"] - pairs["train"] == {("cs", "de"), ("cs", "fr"), ("de", "fr")}
