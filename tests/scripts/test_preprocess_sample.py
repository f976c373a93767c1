"""scripts/preprocess_sample.sh: which text it brings to scripts/preprocess.sh (a stand-in)."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.shell import ROOT, run_script

# Of the text that the grammar made (seed 1), on which every number of the sample corpus rests.
SHA256 = {
    "train.de": "e862f8102c6bb3bb3c6c461dd04b6c4004fc20ee3fead9ee53515a28447be8c5",
    "train.en": "0f9e885daf393774c113e84d09708e5d8ab7e40b5773c9f4cd7c23742fda4c3b",
    "valid.de": "1a46eecc070d91d54c6cf038d88201b2db19038c0486ca3c9a2523af6f2612d1",
    "valid.en": "073bd974b12cb12d9b92a66e1e773c1273dd891392e81eb2d30a17d3557a2d72",
    "test.de": "ef0c853e14971edd7b062e0cae3519910322ae66c71e0f83f66f2d9cef1b2754",
    "test.en": "a85784b03a38ae62919bac8e0875b447c0f12b5466f98728d17bee0c4f321b8d",
}
STAND_IN = """#!/usr/bin/env bash
mkdir -p "$OUT"
for split in "$TRAIN" "$VALID" "$TEST"; do cp "$split.$SRC" "$split.$TGT" "$OUT"; done
echo "$VOCAB_SIZE $*" >"$OUT/settings"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "scripts" / "lib").mkdir(parents=True)
    for name in ("scripts/preprocess_sample.sh", "scripts/lib/common.sh"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "data" / "sample", folder / "data" / "sample")
    (folder / "scripts" / "preprocess.sh").write_text(STAND_IN, encoding="utf-8")
    return folder


def preprocess(
    project: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    script = project / "scripts" / "preprocess_sample.sh"
    variables = {"TMPDIR": str(project.parent)} | variables
    return run_script(script, *arguments, env=variables)


def test_the_whole_corpus_is_the_text_that_the_published_numbers_rest_on(project: Path) -> None:
    run = preprocess(project, "--padding-factor", "8", FORCE="0")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    out = project / "data" / "sample.de-en"
    found = {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in SHA256}
    assert found == SHA256
    assert (out / "settings").read_text(encoding="utf-8") == "2000 --padding-factor 8\n"
    assert [path.name for path in project.parent.iterdir()] == ["project"]
    german = [(out / f"{split}.de").read_text("utf-8").splitlines() for split in ("train", "valid")]
    german.append((out / "test.de").read_text(encoding="utf-8").splitlines())
    assert [len(lines) for lines in german] == [25_000, 500, 500]
    assert len({line for lines in german for line in lines}) == 26_000


def test_fewer_pairs_are_the_first_ones(project: Path, tmp_path: Path) -> None:
    whole, some = tmp_path / "whole", tmp_path / "some"
    assert preprocess(project, OUT=str(whole)).returncode == 0
    sizes = {"train": 60, "valid": 7, "test": 1}
    variables = {f"{split.upper()}_LINES": str(size) for split, size in sizes.items()}
    assert preprocess(project, OUT=str(some), VOCAB_SIZE="90", **variables).returncode == 0
    for name in SHA256:
        lines = (whole / name).read_bytes().splitlines(keepends=True)
        assert (some / name).read_bytes() == b"".join(lines[: sizes[name.split(".")[0]]])


@pytest.mark.parametrize(("name", "value"), [("TRAIN", "25001"), ("VALID", "0"), ("TEST", "some")])
def test_more_pairs_than_there_are_and_none_are_refused(
    project: Path, name: str, value: str
) -> None:
    run = preprocess(project, **{f"{name}_LINES": value})
    assert run.returncode == 2
    (line,) = run.stderr.splitlines()
    assert f"{name}_LINES is '{value}'; it must be a number from 1 to " in line
    assert not (project / "data" / "sample.de-en").exists()


def test_another_seed_is_refused_since_the_corpus_is_one_text(project: Path) -> None:
    run = preprocess(project, SEED="5")
    assert run.returncode == 2
    assert "SEED is '5'" in run.stderr
    assert not (project / "data" / "sample.de-en").exists()
