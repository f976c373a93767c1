"""Averages of many directions against values worked out by hand; what is missing is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet.experiments.m2m import beside_paper
from fairseq_deepnet.tools.corpora.folder import Direction
from fairseq_deepnet.tools.evaluation import directions
from fairseq_deepnet.tools.evaluation.directions import Summary
from fairseq_deepnet.tools.scores import read_directions, read_score

SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
BLEU = {
    "de-en": 30.0,
    "en-de": 26.0,
    "fr-en": 40.0,
    "en-fr": 35.0,
    "cs-en": 20.0,
    "en-cs": 11.0,
    "de-fr": 9.0,
    "fr-de": 6.0,
}
ZERO_SHOT = {"de-fr", "fr-de"}
LINES = {"de-en": 1_000_000, "en-fr": 500_000, "cs-en": 20_000}
"""Training lines by pair, under either of its names."""


def write(folder: Path, name: str, bleu: float | None = None, **fields: Any) -> None:
    content = {
        "direction": name,
        "bleu": BLEU.get(name) if bleu is None else bleu,
        "chrf": (BLEU.get(name) or 0) + 20,
        "bleu_signature": SIGNATURE,
        "lines": 1000,
        "zero_shot": name in ZERO_SHOT,
        "off_target": 0.6 if name == "de-fr" else 0.01,
        "off_target_floor": 0.002,
        **fields,
    }
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


def summarise(folder: Path, expected: list[str], lines: dict[str, int]) -> Summary:
    wanted = list(map(Direction.parse, expected))
    return directions.summarise(folder, read_directions(folder), wanted, lines)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in BLEU:
        write(tmp_path / "scores", name)
    return tmp_path / "scores"


def averages(folder: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(
        (folder / "summary.json").read_text(encoding="utf-8")
    )["averages"]
    return found


def test_averages_are_those_worked_out_by_hand(folder: Path) -> None:
    summarise(folder, list(BLEU), LINES)
    found = averages(folder)
    assert found["X-En"]["bleu"] == 30  # (30 + 40 + 20) / 3
    assert found["En-X"]["bleu"] == 24  # (26 + 35 + 11) / 3
    assert found["all supervised"]["bleu"] == 27  # the mean of the six
    assert found["zero-shot"]["bleu"] == 7.5  # (9 + 6) / 2
    assert found["all"]["bleu"] == 22.125  # 177 / 8
    assert found["all"]["chrf"] == 42.125
    assert found["high resource"]["bleu"] == 28  # de: (30 + 26) / 2
    assert found["medium resource"]["bleu"] == 37.5  # fr
    assert found["low resource"]["bleu"] == 15.5  # cs
    assert found["X-En low resource"]["bleu"] == 20
    assert found["zero-shot"]["off_target"] == 0.305  # (0.6 + 0.01) / 2
    assert found["all supervised"]["off_target"] == 0.01
    assert found["zero-shot"]["off_target_floor"] == 0.002
    assert {name: (entry["directions"], entry["expected"]) for name, entry in found.items()} == {
        **{"X-En": (3, 3), "En-X": (3, 3), "all supervised": (6, 6), "zero-shot": (2, 2)},
        **{"all": (8, 8), "high resource": (2, 2), "X-En high resource": (1, 1)},
        **{"En-X high resource": (1, 1), "medium resource": (2, 2)},
        **{"X-En medium resource": (1, 1), "En-X medium resource": (1, 1)},
        **{"low resource": (2, 2), "X-En low resource": (1, 1), "En-X low resource": (1, 1)},
    }


def test_the_table_has_a_line_per_direction(folder: Path) -> None:
    (folder / "de-fr.json").unlink()
    lines = summarise(folder, list(BLEU), LINES).text.splitlines()
    rows = {
        cells[0]: cells[1:]
        for line in lines
        if (cells := [cell.strip() for cell in line.strip("|").split("|")])
    }
    assert rows["de-en"] == ["1", "30.00", "50.00", "1.0 %", "0.2 %"]
    assert rows["fr-de*"] == ["1", "6.00", "26.00", "1.0 %", "0.2 %"]
    assert rows["de-fr*"] == ["?", "", "", "", ""]


def test_a_report_reads_the_averages_of_the_summary(folder: Path) -> None:
    assert read_score(folder.parent, folder.name) is None
    summarise(folder, list(BLEU), LINES)
    found = read_score(folder.parent, folder.name)
    assert found is not None
    expected = {"x-en": 30.0, "en-x": 24.0, "average": 27.0, "zero-shot": 7.5}
    assert (found.values, found.headline) == (expected, 27.0)
    assert found.signatures == {"bleu": SIGNATURE}
    assert (found.facts["directions"], found.facts["lines"]) == (8, 8000)


def test_an_incomplete_set_is_never_averaged_silently(folder: Path) -> None:
    for name in ("en-cs", "fr-de"):
        (folder / f"{name}.json").unlink()
    text = summarise(folder, list(BLEU), LINES).text
    assert text.startswith("INCOMPLETE: 6 of 8 directions are scored; to be scored: en-cs, fr-de.")
    assert "2 of 3 !" in text
    assert "1 of 2 !" in text
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["complete"] is False
    assert summary["missing"] == ["en-cs", "fr-de"]
    found = summary["averages"]
    assert found["X-En"] == found["X-En"] | {"complete": True, "bleu": 30, "directions": 3}
    assert (found["En-X"]["complete"], found["En-X"]["bleu"]) == (False, 30.5)  # (26 + 35) / 2
    assert (found["zero-shot"]["directions"], found["zero-shot"]["expected"]) == (1, 2)
    assert (folder / "table.md").read_text(encoding="utf-8").startswith("INCOMPLETE")


def test_the_papers_numbers_stand_beside_ours(folder: Path) -> None:
    text = beside_paper(summarise(folder, list(BLEU), LINES), "flores")
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines()]
    assert ["M2M-100, 48 layers (12B)", "13.6"] in rows
    assert ["this model", "22.12 (over 8 of 7,482 directions)"] in rows


def test_scores_of_other_settings_are_not_averaged(folder: Path) -> None:
    """The digests of the texts differ from direction to direction, and are no settings."""
    for number, name in enumerate(BLEU):
        write(folder, name, request={"beam": 5, "source": str(number), "reference": "r"})
    summarise(folder, list(BLEU), LINES)
    write(folder, "fr-de", request={"beam": 1, "source": "x", "reference": "r"})
    with pytest.raises(ValueError, match="has scores of different models or options"):
        summarise(folder, list(BLEU), LINES)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "de-en.json is damaged"),
        (json.dumps({"bleu": 1, "chrf": 2, "lines": 3}), "'bleu_signature' is missing"),
    ],
)
def test_a_damaged_score_is_named(folder: Path, content: str, message: str) -> None:
    (folder / "de-en.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        summarise(folder, list(BLEU), LINES)
    assert not (folder / "table.md").exists()


def test_zero_shot_directions_are_in_no_average_of_trained_ones(tmp_path: Path) -> None:
    write(tmp_path, "de-en", 30.0, zero_shot=False)
    write(tmp_path, "fr-en", 10.0, zero_shot=True)
    write(tmp_path, "en-fr", 2.0, zero_shot=True)
    summarise(tmp_path, ["de-en", "fr-en", "en-fr"], {})
    means = {name: values["bleu"] for name, values in averages(tmp_path).items()}
    assert means["X-En"] == means["all supervised"] == 30.0
    assert means["zero-shot"] == 6.0
    assert means["all"] == 14.0
    assert "En-X" not in means
