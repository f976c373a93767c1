"""The record that tells a second run whether there is anything to do."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from fairseq_deepnet.tools.corpora import manifest

SETTINGS: dict[str, object] = {"source": "eo", "target": "ia", "vocab_size": 200}


def write_record(out: Path, inputs: dict[str, str]) -> None:
    out.mkdir()
    (out / "corpus.json").write_text(
        json.dumps({"settings": SETTINGS, "inputs": inputs}), encoding="utf-8"
    )


def test_packing_a_file_does_not_change_its_digest(tmp_path: Path) -> None:
    (tmp_path / "a.eo").write_bytes(b"kato\n")
    (tmp_path / "b.eo.gz").write_bytes(gzip.compress(b"kato\n"))
    found = manifest.digests({"a": str(tmp_path / "a"), "b": str(tmp_path / "b")}, ["eo", "ia"])
    assert found["a.eo"] == found["b.eo"]
    assert set(found) == {"a.eo", "b.eo"}


def test_state_is_complete_only_for_the_same_settings_and_inputs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert manifest.state(out, SETTINGS, {"train.eo": "1"}) == "build"
    write_record(out, {"train.eo": "1"})
    assert manifest.state(out, SETTINGS, {"train.eo": "1"}) == "complete"
    assert manifest.state(out, SETTINGS, {}) == "complete"
    assert manifest.state(out, SETTINGS, {"train.eo": "2"}, force=True) == "build"
    with pytest.raises(ValueError, match=r"input train\.eo changed"):
        manifest.state(out, SETTINGS, {"train.eo": "2"})
    with pytest.raises(ValueError, match="vocab_size was 200, now 300"):
        manifest.state(out, {**SETTINGS, "vocab_size": 300}, {})


def test_finished_stages_stay_only_for_the_same_plan(tmp_path: Path) -> None:
    part = tmp_path / "out.part"
    manifest.prepare(part, SETTINGS, {"train.eo": "1"})
    (part / "text").mkdir()
    manifest.prepare(part, SETTINGS, {"train.eo": "1"})
    assert (part / "text").exists()
    manifest.prepare(part, SETTINGS, {"train.eo": "1"}, keep=False)
    assert [path.name for path in part.iterdir()] == ["plan.json"]
    (part / "text").mkdir()
    manifest.prepare(part, SETTINGS, {"train.eo": "2"})
    assert [path.name for path in part.iterdir()] == ["plan.json"]


def test_a_working_folder_that_someone_else_filled_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out.part").mkdir()
    (tmp_path / "out.part" / "precious").touch()
    with pytest.raises(ValueError, match="was not made by this script"):
        manifest.prepare(tmp_path / "out.part", SETTINGS, {})
    assert (tmp_path / "out.part" / "precious").exists()


def write_stages(part: Path, lines: dict[str, int]) -> None:
    """Folders as the stages leave them, each with its number of lines a side."""
    (part / "binarised").mkdir(parents=True)
    for stage in ("text", "encoded"):
        (part / stage).mkdir()
    for language in ("eo", "ia"):
        for stage in ("text", "encoded"):
            (part / stage / f"valid.{language}").write_text("x\n" * lines[stage], encoding="utf-8")
        header = manifest._INDEX_HEADER.pack(b"MMIDIDX\x00\x00", 1, 8, lines["binarised"])
        (part / "binarised" / f"valid.eo-ia.{language}.idx").write_bytes(header)


@pytest.mark.parametrize("stage", ["text", "encoded", "binarised"])
def test_a_line_that_any_stage_lost_is_noticed(tmp_path: Path, stage: str) -> None:
    lines = {"text": 3, "encoded": 3, "binarised": 3}
    write_stages(tmp_path / "good", lines)
    assert manifest.check_counts(tmp_path / "good", ["valid"], ["eo", "ia"]) == {"valid": 3}
    write_stages(tmp_path / "bad", {**lines, stage: 2})
    with pytest.raises(ValueError, match="line counts of valid differ between stages"):
        manifest.check_counts(tmp_path / "bad", ["valid"], ["eo", "ia"])


def test_what_is_no_index_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.idx").write_bytes(b"TNTIDX\x00\x00" + bytes(40))
    with pytest.raises(ValueError, match="no mmap index"):
        manifest.count_binarised(tmp_path / "x.idx")


def test_fairseq_s_own_summary_lines_are_read(tmp_path: Path) -> None:
    (tmp_path / "preprocess.log").write_text(
        "[de] Dictionary: 8001 types\n"
        "[de] data/train.x/encoded/valid.de: 14 sents, 41 tokens, 2.44% replaced (by <unk>)\n"
        "[en] data/train.x/encoded/train.en: 9 sents, 70 tokens, 3.1e-05% replaced (by <unk>)\n",
        encoding="utf-8",
    )
    assert manifest.read_summaries(tmp_path / "preprocess.log") == {
        "valid.de": {"tokens": 41, "unknown_percent": 2.44},
        "train.en": {"tokens": 70, "unknown_percent": 3.1e-05},
    }
