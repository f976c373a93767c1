"""Averages over many directions against hand-computed values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet.records import read_record
from fairseq_deepnet.tools.corpora.folder import Direction
from fairseq_deepnet.tools.evaluation.directions import summarise
from fairseq_deepnet.tools.scores import read_score

SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
BLEU = {
    **{"de-en": 30.0, "en-de": 26.0, "fr-en": 40.0, "en-fr": 35.0, "cs-en": 20.0, "en-cs": 11.0},
    **{"de-fr": 9.0, "fr-de": 6.0, "en-zh": 2.0},
}
TRAINED = [*map(Direction.parse, list(BLEU)[:6])]


def records(*missing: str) -> dict[Direction, dict[str, Any]]:
    return {
        Direction.parse(name): {
            "bleu": bleu,
            "chrf": bleu + 20,
            "bleu_signature": SIGNATURE,
            "lines": 1000,
            "request": {"texts": [name]},
            "off_target": 0.6 if name == "de-fr" else 0.03,
            "off_target_floor": 0.002,
        }
        if name not in missing
        else {}
        for name, bleu in BLEU.items()
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "scores").mkdir()
    return tmp_path / "scores"


def test_averages_equal_hand_computed_values(folder: Path) -> None:
    summarise(folder, records(), TRAINED)
    averages = read_record(folder / "summary.json")["averages"]
    bleu = {name: means["bleu"] for name, means in averages.items()}
    assert bleu == {
        "X-En": 30.0,  # (30 + 40 + 20) / 3
        "En-X": 24.0,  # (26 + 35 + 11) / 3, without the zero-shot en-zh
        "all supervised": 27.0,  # these six
        "zero-shot": 5.6667,  # (9 + 6 + 2) / 3
        "all": 19.8889,  # 179 / 9
    }
    assert averages["all"]["chrf"] == 39.8889
    assert averages["zero-shot"]["off_target"] == 0.22  # (0.6 + 0.03 + 0.03) / 3
    assert averages["all supervised"]["off_target"] == 0.03
    assert averages["zero-shot"]["off_target_floor"] == 0.002
    sizes = [(means["directions"], means["expected"]) for means in averages.values()]
    assert sizes == [(3, 3), (3, 3), (6, 6), (3, 3), (9, 9)]  # in the order of `bleu`


def test_a_report_reads_the_averages_of_the_summary(folder: Path) -> None:
    assert read_score(folder.parent, folder.name) is None
    summarise(folder, records(), TRAINED)
    score = read_score(folder.parent, folder.name)
    assert score is not None
    expected = {"x-en": 30.0, "en-x": 24.0, "average": 27.0, "zero-shot": 5.6667}
    assert (score.values, score.headline) == (expected, 27.0)
    assert score.signatures == {"bleu": SIGNATURE}
    assert (score.facts["directions"], score.facts["lines"]) == (9, 9000)
    assert score.facts["texts"] == [*BLEU]
    summarise(folder, records(*map(str, TRAINED)), TRAINED)  # only zero-shot directions
    assert (score := read_score(folder.parent, folder.name))
    assert (score.values, score.headline) == ({"zero-shot": 5.6667}, 5.6667)


def test_an_incomplete_set_is_never_averaged_silently(folder: Path) -> None:
    text = summarise(folder, records("en-cs", "de-fr"), TRAINED)
    assert text.startswith("INCOMPLETE: 7 of 9 directions are scored; missing: en-cs, de-fr.")
    assert (folder / "table.md").read_text(encoding="utf-8") == f"{text}\n"
    lines = (line.strip("|").split("|") for line in text.splitlines())
    rows = {name.strip(): [cell.strip() for cell in cells] for name, *cells in lines}
    assert rows["En-X"] == ["2 of 3 !", "30.50", "50.50", "3.0 %", "0.2 %"]  # (26 + 35) / 2
    assert rows["zero-shot"][:2] == ["2 of 3 !", "4.00"]
    assert rows["de-en"] == ["1", "30.00", "50.00", "3.0 %", "0.2 %"]
    assert rows["fr-de*"] == ["1", "6.00", "26.00", "3.0 %", "0.2 %"]
    assert rows["de-fr*"] == ["?", "", "", "", ""]
    assert read_record(folder / "summary.json")["missing"] == ["en-cs", "de-fr"]
