"""Arguments and exit status of scripts that call `deepnet`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.shell import FakeBin, run_script


@pytest.mark.parametrize(
    ("script", "words", "variant", "expected"),
    [
        ("sweep.sh", "table1 depth=6", "", "sweep --variables table1 depth=6"),
        ("quickstart.sh", "", "", "quickstart --variables"),
        ("train.sh", "multi30k --lr 1", "", "train --variables multi30k -- --lr 1"),
        ("eval_bleu.sh", "run --lenpen 2", "", "evaluate --variables run -- --lenpen 2"),
        ("average.sh", "a/1 b/2", "", "average --variables --out a/average_of_2.pt a/1 b/2"),
        ("average.sh", "run", "", "average --variables --last=5 --out run/average_5.pt run"),
        ("preprocess.sh", "", "", "preprocess --variables pair"),
        ("preprocess_wmt17.sh", "", "tokenized", "preprocess --variables wmt17-tokenized"),
    ],
)
def test_words_and_status_are_passed_on(
    script: str, words: str, variant: str, expected: str, fake_bin: FakeBin, tmp_path: Path
) -> None:
    fake_bin.add("deepnet", stdout="a table", status=1)
    (tmp_path / "run").mkdir()
    variables = {"VARIANT": variant}
    result = run_script(script, *words.split(), env=variables, path=fake_bin.path(), cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "a table")
    (call,) = fake_bin.calls("deepnet")
    assert " ".join(call) == expected


@pytest.mark.parametrize("script", ["sweep.sh", "train.sh", "average.sh"])
@pytest.mark.parametrize("words", [[], ["--dry-run"]])
def test_a_missing_word_is_named(script: str, words: list[str], fake_bin: FakeBin) -> None:
    fake_bin.add("deepnet")
    result = run_script(script, *words, path=fake_bin.path())
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "missing" in line
    assert fake_bin.calls("deepnet") == []


def test_a_number_of_checkpoints_needs_a_run() -> None:
    result = run_script("average.sh", "a.pt", "b.pt", env={"N": "10"})
    assert (result.returncode, "N=10 needs a run" in result.stderr) == (2, True)
