"""The record that tells a second run whether there is anything to do."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet.records import read_record
from fairseq_deepnet.tools.corpora import builder
from fairseq_deepnet.tools.corpora.builder import Row
from fairseq_deepnet.tools.corpora.text import find_side, raw_lines

SETTINGS: dict[str, object] = {"source": "eo", "target": "ia", "vocab_size": 200}


def write_record(out: Path, inputs: dict[str, str]) -> None:
    out.mkdir()
    (out / "corpus.json").write_text(
        json.dumps({"settings": SETTINGS, "inputs": inputs}), encoding="utf-8"
    )


class Parrot(builder.Blueprint):
    """A folder that holds its own text."""

    def __init__(self, *rows: Row) -> None:
        self.rows = rows
        self.made = 0

    @property
    def settings(self) -> dict[str, Any]:
        return SETTINGS

    def make(self, part: Path) -> tuple[dict[str, Any], str]:
        self.made += 1
        builder.stage(part, "text", "repeating", self.repeat)
        builder.link_folder(part / "text", part / "whole")
        return {"source": "eo"}, "a parrot"

    def repeat(self, folder: Path) -> None:
        for row in self.rows:
            side = find_side(row.prefix, "eo")
            (folder / f"{row.split}.eo").write_bytes(b"".join(raw_lines(side)))


def test_packing_a_file_does_not_change_its_digest(tmp_path: Path) -> None:
    (tmp_path / "a.eo").write_bytes(b"kato\n")
    (tmp_path / "b.eo.gz").write_bytes(gzip.compress(b"kato\n"))
    rows = [Row(split, ("eo", "ia"), str(tmp_path / split)) for split in "ab"]
    found = Parrot(*rows).digests()
    assert found["a.eo"] == found["b.eo"]
    assert set(found) == {"a.eo", "b.eo"}


def test_a_folder_is_made_once_and_records_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "raw.eo").write_bytes(b"kato\n")
    parrot = Parrot(Row("train", ("eo",), str(tmp_path / "raw")))
    out = tmp_path / "new" / "out"
    assert builder.build(lambda: parrot, out)
    assert not builder.build(lambda: parrot, out)
    assert "nothing to do" in capsys.readouterr().err
    assert parrot.made == 1
    record = read_record(out / "corpus.json")
    assert record["files"] == builder.folder_digests(out)
    assert set(record["files"]) == {"train.eo"}
    assert record["inputs"] == {"train.eo": record["files"]["train.eo"]}
    (tmp_path / "raw.eo").write_bytes(b"hundo\n")
    with pytest.raises(ValueError, match=r"input train\.eo changed"):
        builder.build(lambda: parrot, out)
    assert builder.build(lambda: parrot, out, force=True)
    assert (out / "train.eo").read_bytes() == b"hundo\n"
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_side_that_is_not_there_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    parrot = Parrot(Row("test1", ("eo",), str(tmp_path / "raw")))
    with pytest.raises(FileNotFoundError, match=r"no eo side of .*raw: neither .*raw\.eo nor"):
        builder.build(lambda: parrot, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_another_run_makes_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "_WAIT", 0.0)
    with (
        builder.held(tmp_path / "out"),
        pytest.raises(ValueError, match="another run is making"),
        builder.held(tmp_path / "out"),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_a_folder_is_complete_only_for_the_same_settings_and_inputs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert not builder.is_complete(out, SETTINGS, {"train.eo": "1"})
    write_record(out, {"train.eo": "1"})
    assert builder.is_complete(out, SETTINGS, {"train.eo": "1"})
    assert builder.is_complete(out, SETTINGS, {})
    assert not builder.is_complete(out, SETTINGS, {"train.eo": "2"}, force=True)
    with pytest.raises(ValueError, match=r"input train\.eo changed"):
        builder.is_complete(out, SETTINGS, {"train.eo": "2"})
    with pytest.raises(ValueError, match="vocab_size was 200, now 300"):
        builder.is_complete(out, {**SETTINGS, "vocab_size": 300}, {})


def test_finished_stages_stay_only_for_the_same_plan(tmp_path: Path) -> None:
    part = tmp_path / "out.part"
    builder.prepare(part, SETTINGS, {"train.eo": "1"})
    (part / "text").mkdir()
    builder.prepare(part, SETTINGS, {"train.eo": "1"})
    assert (part / "text").exists()
    (part / "subwords").mkdir()
    builder.prepare(part, {**SETTINGS, "vocab_size": 5}, {"train.eo": "1"})
    assert sorted(path.name for path in part.iterdir()) == ["plan.json", "text"]
    builder.prepare(part, {**SETTINGS, "clean_on": "subwords"}, {"train.eo": "1"})
    (part / "text").mkdir()
    builder.prepare(part, {**SETTINGS, "clean_on": "subwords", "merges": 1}, {"train.eo": "1"})
    assert [path.name for path in part.iterdir()] == ["plan.json"]
    (part / "text").mkdir()
    builder.prepare(part, SETTINGS, {"train.eo": "2"})
    assert [path.name for path in part.iterdir()] == ["plan.json"]


def test_a_working_folder_that_someone_else_filled_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out.part").mkdir()
    (tmp_path / "out.part" / "precious").touch()
    with pytest.raises(ValueError, match="was not made by this script"):
        builder.prepare(tmp_path / "out.part", SETTINGS, {})
    assert (tmp_path / "out.part" / "precious").exists()


def test_stages_that_an_earlier_version_left_are_made_anew(tmp_path: Path) -> None:
    part = tmp_path / "out.part"
    (part / "text").mkdir(parents=True)
    plan = json.dumps({"settings": SETTINGS, "inputs": {}}, indent=2) + "\n"
    (part / "plan.json").write_text(plan, encoding="utf-8")
    builder.prepare(part, SETTINGS, {})
    assert not (part / "text").exists()
    (part / "text").mkdir()
    builder.prepare(part, SETTINGS, {})
    assert (part / "text").is_dir()
