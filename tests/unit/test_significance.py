"""Paired significance tests of stored translations: sacreBLEU's numbers, seeds, what is refused."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.experiments.significance import (
    Comparison,
    compare,
    find_systems,
    read_scored,
)
from tests.support.systems import REFERENCES, spoilt, write_run, write_texts

BOTH = ("bootstrap", "randomisation")
# Of sacreBLEU 2.6.0's own command line, on the texts below as files ref, a, b, c:
#   sacrebleu ref -i a b c -m bleu --paired-bs -f json
#   sacrebleu ref -i a b c -m bleu --paired-ar -f json
GOLDEN = {
    "a": (85.9599812597823, 85.98211174318763, 3.755957674361973, None, None),
    "b": (90.19508632344017, 90.19728909925226, 3.824889086916606, 0.056943056943, 0.124087591241),
    "c": (89.87287031768014, 89.97013678681854, 3.7530855368080296, 0.05494505494, 0.131786821318),
}
"""Name -> BLEU, mean and half of the 95 % interval over resamples, p of both tests."""
TEXTS = {"a": spoilt(2), "b": spoilt(3, 1), "c": spoilt(3, 2)}


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "text")


@pytest.fixture
def runs(tmp_path: Path, reference: Path) -> list[Path]:
    for name, hypotheses in TEXTS.items():
        write_run(tmp_path / name, reference, hypotheses, arch=name)
    return [tmp_path / name for name in TEXTS]


def compared(targets: list[Path], samples: int | None = None, **options: Path) -> Comparison:
    systems, missing = find_systems(targets, options.get("baseline"))
    return compare(systems, BOTH, samples, missing)


def test_the_numbers_are_those_of_sacrebleus_own_command_line(runs: list[Path]) -> None:
    found = compared(runs)
    assert [row.name for row in found.rows] == list(GOLDEN)
    for row in found.rows:
        bleu, mean, ci, bootstrap, randomisation = GOLDEN[row.name]
        assert (row.bleu, row.centre, row.interval) == pytest.approx((bleu, mean, ci), abs=1e-4)
        assert row.p.get("bootstrap") == pytest.approx(bootstrap, abs=1e-9)
        assert row.p.get("randomisation") == pytest.approx(randomisation, abs=1e-9)
    assert "|bs:1000|seed:12345|" in found.signatures["bootstrap"]
    assert "|ar:10000|seed:12345|" in found.signatures["randomisation"]


def test_a_clearly_better_system_has_a_small_p_and_one_as_good_a_large_one(
    tmp_path: Path, reference: Path
) -> None:
    write_run(tmp_path / "bad", reference, spoilt(1), arch="bad")
    write_run(tmp_path / "good", reference, spoilt(10), arch="good")
    write_run(tmp_path / "alike", reference, spoilt(10, 3), arch="alike")
    found = compared([tmp_path / "bad", tmp_path / "good"], samples=400)
    assert found.rows[1].difference > 20
    assert all(p < 0.01 for p in found.rows[1].p.values())
    found = compared([tmp_path / "alike", tmp_path / "good"], samples=400)
    assert all(p > 0.2 for p in found.rows[1].p.values())


def test_equal_translations_are_not_called_different(tmp_path: Path, reference: Path) -> None:
    """sacreBLEU itself says p = 1/1001: no resample of nothing is above nothing."""
    for name in ("one", "other"):
        write_run(tmp_path / name, reference, spoilt(3), arch=name)
    found = compared([tmp_path / "one", tmp_path / "other"], samples=100)
    assert found.rows[1].difference == 0
    assert found.rows[1].p == {"bootstrap": 1.0, "randomisation": 1.0}


@pytest.fixture
def seeded(tmp_path: Path, reference: Path) -> list[Path]:
    """Two systems with seeds 1 and 2, and a third seed of the second alone."""
    texts = {"a": (spoilt(2), spoilt(3)), "b": (spoilt(3, 1), spoilt(4, 1), spoilt(2, 1))}
    for name, versions in texts.items():
        for seed, hypotheses in enumerate(versions, start=1):
            write_run(tmp_path / f"{name}.seed{seed}", reference, hypotheses, arch=name, seed=seed)
    names = ("a.seed1", "a.seed2", "b.seed1", "b.seed2", "b.seed3")
    return [tmp_path / name for name in names]


def test_seeds_of_a_system_are_tested_together(seeded: list[Path]) -> None:
    found = compared(seeded, samples=200)
    baseline, other = found.rows
    first = [read_scored(seeded[index] / "scores" / NAME).bleu for index in (0, 1)]
    assert [run.bleu for run, _ in baseline.pairs] == pytest.approx(first, abs=1e-3)
    assert baseline.bleu == pytest.approx(sum(first) / 2, abs=1e-3)
    assert baseline.deviation == pytest.approx(abs(first[0] - first[1]) / 2**0.5, abs=1e-3)
    assert [run.seed for _, run in other.pairs] == [1, 2], (
        "the third seed has nothing to be compared with"
    )
    assert other.difference == pytest.approx(other.bleu - baseline.bleu)
    text = found.section().text()
    assert "several seeds: BLEU is the mean ±sample standard deviation" in text
    assert "seed 3 of b.seed1 has no partner in a.seed1" in text


NAME = "test.checkpoint_best.beam5.lenpen1.json"


INT8 = {"engine": "ctranslate2", "quantization": "int8"}


@pytest.mark.parametrize(
    ("decoded", "told"),
    [
        ({"beam": 1}, "beam 1, lenpen 1.0"),
        ({"lenpen": 0.6}, "beam 5, lenpen 0.6"),
        ({"options": ["--sampling"]}, "beam 5, lenpen 1.0, --sampling"),
        (INT8, "beam 5, lenpen 1.0, decoded by ctranslate2 int8"),
        ({"averaged": ["1.pt", "2.pt", "3.pt"]}, "beam 5, lenpen 1.0, average of 3 checkpoints"),
    ],
    ids=["beam", "lenpen", "options", "engine", "average"],
)
def test_runs_that_were_decoded_differently_are_compared_only_where_their_scores_are_named(
    tmp_path: Path, reference: Path, runs: list[Path], decoded: dict[str, Any], told: str
) -> None:
    other = write_run(tmp_path / "d", reference, spoilt(4), "test.d", arch="d", decoded=decoded)
    message = re.escape(f"(beam 5, lenpen 1.0) and {other} ({told}) are decoded differently")
    with pytest.raises(ValueError, match=message):
        find_systems([runs[0], other], None)
    found = compared([runs[0] / "scores" / NAME, other], samples=50)
    assert found.notes == [f"decoded differently: a: beam 5, lenpen 1.0; d: {told}"]
    assert compared(runs, samples=50).notes == []


def test_what_was_scored_on_other_texts_is_not_compared(tmp_path: Path, runs: list[Path]) -> None:
    other = write_texts(tmp_path / "other", REFERENCES[::-1])
    write_run(tmp_path / "d", other, spoilt(2)[::-1], arch="d")
    with pytest.raises(ValueError, match="different test sets"):
        find_systems([*runs, tmp_path / "d"], None)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (spoilt(5), r"contains BLEU 85\.96, but its hypotheses have 9"),
        (spoilt(1), r"contains BLEU 85\.96, but its hypotheses have [67]"),
        (spoilt(2)[1:], "has 59 lines"),
    ],
    ids=["better", "worse", "too-few"],
)
def test_hypotheses_that_are_not_those_of_the_score_are_found_out(
    runs: list[Path], lines: list[str], message: str
) -> None:
    text = (runs[0] / "scores" / NAME).with_suffix(".txt")
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        compared(runs, samples=50)


def test_the_command_prints_a_table_and_writes_markdown_and_csv(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "unscored").mkdir()
    (tmp_path / "unscored" / "config.yaml").write_text("arch: x\n", encoding="utf-8")
    folders = [str(run) for run in (*runs, tmp_path / "unscored")]
    files = [tmp_path / "table.md", tmp_path / "table.csv"]
    words = ["--significance", "--samples=50", f"--markdown={files[0]}", f"--csv={files[1]}"]
    assert cli.main(["report", *folders, *words]) == 0
    caught = capsys.readouterr()
    lines = caught.out.splitlines()
    assert lines[2].split() == [
        *("system", "seeds", "BLEU", "95%", "interval", "difference"),
        *("p", "(bootstrap)", "p", "(randomisation)"),
    ]
    assert lines[4].split()[:3] == ["a", "1", "85.96"]
    assert lines[5].split()[5] == "+4.24"
    assert any("unscored is not scored" in line for line in lines)
    assert any("p is not corrected for that" in line for line in lines)
    assert "sacrebleu" not in caught.err.lower()
    assert "| b        |" in files[0].read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(files[1].read_text(encoding="utf-8"))))
    assert [(row["system"], row["test"]) for row in rows][2:4] == [(("b"), test) for test in BOTH]
    assert float(rows[2]["bleu"]) == pytest.approx(90.1951, abs=1e-3)
    assert "|ar:50|" in rows[3]["signature"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUNS/a", "--significance"], "a test needs two systems that were scored"),
        (["RUNS/a", "RUNS/b", "--samples=9"], "--samples and --test belong to --significance"),
        (["RUNS/a", "RUNS/b", "--significance", "--samples=0"], "--samples 0: at least 1"),
        (["RUNS/a", "RUNS/b", "--significance", "--plot=x"], "--plot and --significance are"),
        (["RUNS/a", "RUNS/text/test.en", "--significance"], "test.en is no score"),
        (["RUNS/a", "/nowhere", "--significance"], "there is no folder /nowhere"),
    ],
    ids=["one", "without", "samples", "plot", "no-score", "missing"],
)
def test_bad_input_is_refused_in_one_line(
    runs: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    assert runs[0].is_dir()
    assert cli.main(["report", *(word.replace("RUNS", str(tmp_path)) for word in words)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
