"""Paired significance tests of stored translations: sacreBLEU's numbers, seeds, what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.experiments.significance import compare, find_systems, read_scored_run
from fairseq_deepnet.tools.evaluation.scoring import score
from tests.support.cells import write_config

WORDS = [
    *("the", "a", "dog", "man", "woman", "child", "runs", "sees"),
    *("holds", "blue", "red", "old", "small", "ball", "house", "street"),
]
REFERENCES = [
    " ".join(WORDS[(7 * line + 5 * word + word * word) % 16] for word in range(6 + line % 7))
    for line in range(60)
]


def spoilt(every: int, start: int = 0) -> list[str]:
    """Return the references with one word in `every` lines replaced: the less often the better."""
    lines = [line.split() for line in REFERENCES]
    for number in range(start, len(lines), every):
        lines[number][number % len(lines[number])] = "something"
    return [" ".join(line) for line in lines]


NAME = "test.checkpoint_best.beam5.lenpen1.json"
P = ["p (bootstrap)", "p (randomisation)"]
# Of sacreBLEU 2.6.0's own command line, on the texts below as files ref, a, b, c:
#   sacrebleu ref -i a b c -m bleu --paired-bs -f json
#   sacrebleu ref -i a b c -m bleu --paired-ar -f json
GOLDEN = {
    "a": (85.9599812597823, 85.98211174318763, 3.755957674361973, math.nan, math.nan),
    "b": (90.19508632344017, 90.19728909925226, 3.824889086916606, 0.056943056943, 0.124087591241),
    "c": (89.87287031768014, 89.97013678681854, 3.7530855368080296, 0.05494505494, 0.131786821318),
}
"""Name -> BLEU, mean and half of the 95 % interval over resamples, p of both tests."""
TEXTS = {"a": spoilt(2), "b": spoilt(3, 1), "c": spoilt(3, 2)}


def write_lines(file: Path, lines: list[str]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "text" / "test.en", REFERENCES)


def write_run(
    run: Path, reference: Path, hypotheses: list[str], beam: int = 5, **options: Any
) -> Path:
    """Write a run folder with config and score; return the JSON file."""
    write_config(run, arch=run.name.partition(".")[0], **options)
    record = score(hypotheses, reference.read_text(encoding="utf-8").splitlines())
    record |= {"split": "test", "reference": str(reference), "beam": beam, "lenpen": 1.0}
    text = write_lines((run / "scores" / NAME).with_suffix(".txt"), hypotheses)
    text.with_suffix(".json").write_text(json.dumps(record), encoding="utf-8")
    return text.with_suffix(".json")


@pytest.fixture
def runs(tmp_path: Path, reference: Path) -> list[Path]:
    for name, hypotheses in TEXTS.items():
        write_run(tmp_path / name, reference, hypotheses)
    return [tmp_path / name for name in TEXTS]


def compared(targets: list[Path], samples: int | None = None) -> tuple[pd.DataFrame, list[str]]:
    """Return a row per system, and all notes."""
    table = compare(*find_systems(targets), samples)
    return table.entries.set_index("system"), table.notes


def test_the_numbers_are_those_of_sacrebleus_own_command_line(runs: list[Path]) -> None:
    frame, notes = compared(runs)
    columns = ["bleu", "centre", "interval", "p (bootstrap)", "p (randomisation)"]
    for name, (*scores, bootstrap, randomisation) in GOLDEN.items():
        row = list(frame.loc[name, columns])
        assert row[:3] == pytest.approx(scores, abs=1e-4)
        assert row[3:] == pytest.approx([bootstrap, randomisation], abs=1e-9, nan_ok=True)
    assert "|bs:1000|seed:12345|" in notes[3]
    assert "|ar:10000|seed:12345|" in notes[4]


def test_p_is_small_for_a_better_system_and_large_for_one_as_good(
    tmp_path: Path, reference: Path
) -> None:
    texts = {"good": spoilt(10), "bad": spoilt(1), "alike": spoilt(10, 3), "equal": spoilt(10)}
    for name, hypotheses in texts.items():
        write_run(tmp_path / name, reference, hypotheses)
    frame, _ = compared([tmp_path / name for name in texts], samples=400)
    assert frame["difference"]["bad"] < -20
    assert (frame.loc["bad", P] < 0.01).all()
    assert (frame.loc["alike", P] > 0.2).all()
    # sacreBLEU itself has p = 1/401: no resample of nothing is above nothing
    assert frame.loc["equal", ["difference", *P]].tolist() == [0, 1, 1]


def test_seeds_of_a_system_are_tested_together(tmp_path: Path, reference: Path) -> None:
    texts = {"a": (spoilt(2), spoilt(3)), "b": (spoilt(3, 1), spoilt(4, 1), spoilt(2, 1))}
    targets = []
    for name, versions in texts.items():
        for seed, hypotheses in enumerate(versions, start=1):
            targets.append(tmp_path / f"{name}.seed{seed}")
            write_run(targets[-1], reference, hypotheses, seed=seed)
    frame, notes = compared(targets, samples=200)
    first = [read_scored_run(target / "scores" / NAME).record["bleu"] for target in targets[:2]]
    baseline, other = frame.loc["a.seed1"], frame.loc["b.seed1"]
    assert baseline["bleu"] == pytest.approx(sum(first) / 2, abs=1e-3)
    assert baseline["deviation"] == pytest.approx(abs(first[0] - first[1]) / 2**0.5, abs=1e-3)
    assert other["seeds"] == "1 2"  # nothing can be compared with the third seed
    assert other["difference"] == pytest.approx(other["bleu"] - baseline["bleu"])
    assert "b.seed1: seed 3 is left out, as others lack it" in notes


def test_different_decoding_is_noted(tmp_path: Path, reference: Path, runs: list[Path]) -> None:
    other = write_run(tmp_path / "d", reference, spoilt(4), beam=1)
    _, notes = find_systems([runs[0], other])
    decoded = ["a: beam 5, lenpen 1.0", "d: beam 1, lenpen 1.0"]
    assert notes == [f"decoded differently: {text}" for text in decoded]
    assert find_systems(runs)[1] == []


def test_scores_that_do_not_belong_together_are_refused(tmp_path: Path, runs: list[Path]) -> None:
    other = write_lines(tmp_path / "other" / "test.en", REFERENCES[::-1])
    write_run(tmp_path / "d", other, spoilt(2)[::-1])
    with pytest.raises(ValueError, match="different test sets"):
        find_systems([*runs, tmp_path / "d"])
    text = (runs[0] / "scores" / NAME).with_suffix(".txt")
    for lines, message in (
        (spoilt(5), r"contains BLEU 85\.96, but its 60 hypotheses have 94"),
        (spoilt(2)[1:], "its 59 hypotheses have nan"),
    ):
        write_lines(text, lines)
        with pytest.raises(ValueError, match=message):
            compared(runs, samples=50)
    with pytest.raises(ValueError, match="a test needs two scored systems"):
        find_systems(runs[:1])
    with pytest.raises(ValueError, match="is no score of one direction"):
        find_systems([runs[0], tmp_path / "text" / "test.en"])


def test_the_command_prints_a_table_and_writes_markdown_and_csv(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "unscored").mkdir()
    (tmp_path / "unscored" / "config.yaml").write_text("arch: x\n", encoding="utf-8")
    folders = [str(run) for run in (*runs, tmp_path / "unscored")]
    words = ["--significance", "--samples=50", f"--out={tmp_path / 'new'}"]
    assert cli.main(["report", *folders, *words]) == 0
    caught = capsys.readouterr()
    lines = [line.split("|") for line in caught.out.splitlines()]
    assert [cell.strip() for cell in lines[5][1:7]] == ["b", "?", "90.20", "-", "4.24", "90.09"]
    assert f"- {tmp_path}/unscored is not scored" in caught.out
    assert "sacrebleu" not in caught.err.lower()  # it logs every step
    assert (tmp_path / "new" / "report.md").read_text(encoding="utf-8") == caught.out
    frame = pd.read_csv(tmp_path / "new" / "report.csv").set_index("system")
    assert frame["bleu"]["b"] == pytest.approx(90.1951, abs=1e-3)
