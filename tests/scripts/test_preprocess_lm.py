"""scripts/preprocess_lm.sh and its Multi30k recipe: usage, and what reaches the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import SHARED
from tests.support.shell import FakeBin, run_script


def test_the_script_hands_over_with_its_variables(fake_bin: FakeBin, tmp_path: Path) -> None:
    fake_bin.add("deepnet", body='printf %s "$VOCAB_SIZE|$OUT"')
    variables = {"LANG_CODE": "en", "OUT": "-x", "VOCAB_SIZE": "99"}
    done = run_script("preprocess_lm.sh", "extra", env=variables, path=fake_bin.path())
    assert done.returncode == 0, done.stderr
    assert done.stdout == "99|-x"
    (call,) = fake_bin.calls("deepnet")
    assert call == ["preprocess", "language", "--variables", "--", "extra"]


@pytest.mark.parametrize(
    ("variables", "cause"),
    [
        ({"LANG_CODE": ""}, "LANG_CODE is not set"),
        ({"VALID": ""}, "VALID is not set"),
        ({"LANG_CODE": "e n"}, "LANG_CODE is 'e n'"),
        ({"SUBWORDS": "words"}, "SUBWORDS is 'words'"),
        ({"VOCAB_SIZE": "many"}, "VOCAB_SIZE is 'many'"),
        ({"FORCE": "yes"}, "FORCE is 'yes'"),
    ],
)
def test_bad_usage_is_one_line(variables: dict[str, str], cause: str, tmp_path: Path) -> None:
    given = {"LANG_CODE": "en", "TRAIN": "a", "VALID": "b", "OUT": str(tmp_path / "x" / "out")}
    done = run_script("preprocess_lm.sh", env=given | variables)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert cause in done.stderr
    assert not (tmp_path / "x").exists()


def test_a_language_that_multi30k_has_not_is_refused(tmp_path: Path) -> None:
    env = {"LANG_CODE": "nl", "RAW": str(tmp_path), "OUT": str(tmp_path / "out")}
    done = run_script("preprocess_multi30k_lm.sh", env=env)
    assert done.returncode == 2
    assert "no language 'nl' in Multi30k" in done.stderr


@pytest.mark.needs_shared
def test_real_multi30k_is_preprocessed_whole(tmp_path: Path) -> None:
    env = {"LANG_CODE": "cs", "RAW": str(SHARED / "multi30k"), "OUT": str(tmp_path / "out")}
    done = run_script("preprocess_multi30k_lm.sh", env=env | {"VOCAB_SIZE": "1000"}, timeout=600)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out" / "corpus.json").read_text(encoding="utf-8"))
    assert record["lines"] == {"train": 29000, "valid": 1014, "test": 1000}
    assert record["binarised"]["train"]["sentences"] == 29000
