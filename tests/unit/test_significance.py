"""Paired significance tests: sacreBLEU's numbers, seeds together, and scores that do not match."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics.bleu import BLEU

from fairseq_deepnet import cli
from fairseq_deepnet.experiments.significance import MeanOfSeeds, compare
from fairseq_deepnet.tools.evaluation.scoring import score
from tests.support.cells import write_config
from tests.support.corpus import write_lines
from tests.support.runs import make_checkpoint

WORDS = [
    *("the", "a", "dog", "man", "woman", "child", "runs", "sees"),
    *("holds", "blue", "red", "old", "small", "ball", "house", "street"),
]
REFERENCES = [
    " ".join(WORDS[(7 * line + 5 * word + word * word) % 16] for word in range(6 + line % 7))
    for line in range(60)
]
NAME = "test.checkpoint_best.beam5.lenpen1"
P = ["p (bootstrap)", "p (randomisation)"]


def spoilt(every: int, start: int = 0) -> list[str]:
    """Return the references with one word in `every` lines replaced: the less often the better."""
    lines = [line.split() for line in REFERENCES]
    for number in range(start, len(lines), every):
        lines[number][number % len(lines[number])] = "something"
    return [" ".join(line) for line in lines]


# Of sacreBLEU 2.6.0's own command line, on the texts below as files ref, a, b, c:
#   sacrebleu ref -i a b c -m bleu --paired-bs -f json
#   sacrebleu ref -i a b c -m bleu --paired-ar -f json
GOLDEN = {
    "b": (90.19508632344017, 0.056943056943, 0.124087591241),
    "c": (89.87287031768014, 0.05494505494, 0.131786821318),
}
"""Name -> BLEU and p of both tests against a."""
TEXTS = {"a": spoilt(2), "b": spoilt(3, 1), "c": spoilt(3, 2)}


def write_run(
    run: Path, hypotheses: list[str], references: list[str] = REFERENCES, **options: Any
) -> Path:
    write_config(run, arch=run.name.partition(".")[0], **options)
    file = write_lines(run.parent / f"{run.name}.reference", references)
    record = score(hypotheses, references) | {"split": "test", "reference": str(file)}
    write_lines(run / "scores" / f"{NAME}.txt", hypotheses)
    (run / "scores" / f"{NAME}.json").write_text(json.dumps(record), encoding="utf-8")
    return run


def test_systems_that_were_decoded_differently_have_a_note(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, text) for name, text in TEXTS.items()]
    assert not any("decoded" in note for note in compare(runs, f"scores/{NAME}.json")[1])
    file = runs[1] / "scores" / f"{NAME}.json"
    record = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(record | {"beam": 1, "lenpen": 1}), encoding="utf-8")
    notes = compare(runs, NAME)[1]
    assert any(note.endswith("b was decoded with beam 1, lenpen 1") for note in notes)


def test_a_run_that_was_trained_further_after_scoring_has_a_note(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, text) for name, text in TEXTS.items()]
    for run in runs:
        file = run / "scores" / f"{NAME}.json"
        record = json.loads(file.read_text(encoding="utf-8"))
        facts = {"model": "elsewhere/checkpoints/checkpoint_best.pt", "updates": 1000}
        file.write_text(json.dumps(record | facts), encoding="utf-8")
        make_checkpoint(run / "checkpoints" / "checkpoint_best.pt", 1000)
    assert not any("scored at" in note for note in compare(runs)[1])
    make_checkpoint(runs[1] / "checkpoints" / "checkpoint_best.pt", 2000)
    (note,) = (note for note in compare(runs)[1] if "scored at" in note)
    assert note.endswith("b was scored at update 1,000, but checkpoint_best.pt is of update 2,000")


def test_the_numbers_are_those_of_sacrebleus_own_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [write_run(tmp_path / name, text) for name, text in TEXTS.items()]
    frame, notes = compare(runs, NAME)
    for name, expected in GOLDEN.items():
        row = frame.set_index("system").loc[name, ["bleu", *P]]
        assert list(row) == pytest.approx(expected, abs=1e-9)
    assert "|bs:1000|seed:12345|" in notes[-2]
    assert "|ar:10000|seed:12345|" in notes[-1]
    assert cli.main(["report", "--significance", str(tmp_path)]) == 0
    baseline, row = (line.split("|") for line in capsys.readouterr().out.splitlines()[2:4])
    assert [cell.strip() for cell in baseline[1:6]] == ["a", "85.96", "-", "-", "-"]
    assert [cell.strip() for cell in row[1:6]] == ["b", "90.20", "-", "4.24", "0.0569"]


def test_equal_systems_do_not_differ(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, spoilt(10)) for name in ("a", "b")]
    frame, _ = compare(runs, NAME)
    # sacreBLEU itself has p = 1/1001: no resample of nothing is above nothing
    assert frame.loc[1, ["difference", *P]].tolist() == [0, 1, 1]


def test_seeds_of_a_system_are_tested_together(tmp_path: Path) -> None:
    texts = {"a": (spoilt(2), spoilt(3)), "b": (spoilt(3, 1), spoilt(4, 1), spoilt(2, 1))}
    for name, versions in texts.items():
        for seed, hypotheses in enumerate(versions, start=1):
            # another spelling, and an option that changes no result
            same = {"lr": "1e-3", "monitor_interval": 100} if seed == 2 else {"lr": 0.001}
            write_run(tmp_path / f"{name}.{seed}", hypotheses, seed=seed, **same)
    history = {"history": [{"change": "lr*0.5", "from_update": 100}]}
    (tmp_path / "a.2" / "fallback.json").write_text(json.dumps(history), encoding="utf-8")
    result = {"status": "diverged", "reason": "diverged: the loss rose"}  # but it has a score
    (tmp_path / "b.1" / "result.json").write_text(json.dumps(result), encoding="utf-8")
    write_config(tmp_path / "diverged", arch="d")
    frame, notes = compare([tmp_path])
    assert f"{tmp_path}/diverged has no such score" in notes
    first = [score(text, REFERENCES)["bleu"] for text in texts["a"]]
    metric = MeanOfSeeds(BLEU())
    counts = metric._extract_corpus_statistics([*zip(*texts["a"], strict=True)], [REFERENCES])
    assert metric._aggregate_and_compute(counts).score == pytest.approx(sum(first) / 2, abs=1e-3)
    assert frame["bleu"][0] == pytest.approx(sum(first) / 2, abs=1e-3)
    assert frame["deviation"][0] == pytest.approx(abs(first[0] - first[1]) / 2**0.5, abs=1e-3)
    assert "seeds: 1, 2" in notes  # no other run has seed 3
    assert f"{tmp_path}/a.2; trained with the fallbacks lr*0.5" in notes
    assert f"{tmp_path}/b.1 diverged: the loss rose" in notes


def test_scores_that_do_not_match_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", spoilt(2))
    other = write_run(tmp_path / "b", spoilt(2)[::-1], REFERENCES[::-1])
    with pytest.raises(ValueError, match="different test sets"):
        compare([run, other], NAME)
    with pytest.raises(ValueError, match=r"two scored systems.*/a has no such score"):
        compare([run, other], "test.checkpoint_last.beam5.lenpen1")
    again = write_run(tmp_path / "a.again", spoilt(3))
    with pytest.raises(ValueError, match="have the same settings and seed"):
        compare([run, again])
    other = write_run(tmp_path / "c", spoilt(3))
    write_lines(run / "scores" / f"{NAME}.txt", spoilt(5))
    with pytest.raises(ValueError, match="texts changed since they were scored"):
        compare([run, other])
    write_lines(run / "scores" / f"{NAME}.txt", spoilt(2)[1:])
    with pytest.raises(ValueError, match="different numbers of lines"):
        compare([run, other])
