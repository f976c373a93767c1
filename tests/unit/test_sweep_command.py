"""`deepnet sweep`: the plan before anything starts, restarts, and a table at the end."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.experiments import runner
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.planning.estimates import estimate
from tests.support.runs import make_data

TRAIN = """
set -eu
cp "$1" "$RUN/config.yaml"
echo >>"$RUN/starts"
if [[ $(basename "$RUN") == crash* && ! -e $RUN/mended ]]; then exit 3; fi
touch "$RUN/done"
"""
SCORE = """
set -eu
mkdir -p "$1/scores"
name=test.checkpoint_best.beam5.lenpen1
echo '{"bleu": 27.5, "bleu_signature": "s", "lines": 5}' >"$1/scores/$name.json"
"""
DEFINITION = """
title: A small sweep
config: wmt17_base
vocabulary: 1000
cell: "{name}{depth}"
factors:
  name: {set: arch, values: [deepnet_transformer]}
  depth: {set: [encoder-layers, decoder-layers], values: [6, 18]}
tables:
  - {paper: table1, rows: name, columns: depth, measure: bleu}
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "corpus")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(DEFINITION.replace('"{name}{depth}"', '"cell{depth}"'), encoding="utf-8")
    return path


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = {}
    for name, body in (("train", TRAIN), ("score", SCORE)):
        (tmp_path / f"{name}.sh").write_text(body, encoding="utf-8")
        commands[name] = ("bash", str(tmp_path / f"{name}.sh"))
    monkeypatch.setattr(runner, "Scripts", functools.partial(runner.Scripts, **commands))


def sweep(file: Path, *words: object) -> int:
    runs = file.parent / "runs"
    return cli.main(["sweep", str(file), "--runs", str(runs), *map(str, words)])


def starts(file: Path) -> dict[str, int]:
    found = sorted((file.parent / "runs").glob("*/starts"))
    return {path.parent.name: len(path.read_text(encoding="utf-8")) for path in found}


def test_a_dry_run_prints_every_cell_and_the_sum_and_writes_nothing(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--dry-run", "--gpus", 8, "--teraflops", 100, "max-update=1000", "--memory", 40)
    assert sweep(file, *words) == 0
    said = capsys.readouterr()
    assert not (file.parent / "runs").exists()
    total = 0.0
    for depth in (6, 18):
        overrides = [f"encoder-layers={depth}", f"decoder-layers={depth}", "max-update=1000"]
        config = configs.load_config("wmt17_base", [*overrides, "arch=deepnet_transformer"])
        config.options["bf16"] = True
        plan = estimate(config, 8, 40.0, 100.0, 1000)
        assert plan.hours is not None
        assert plan.gpu_hours is not None
        total += plan.gpu_hours
        (line,) = [line for line in said.out.splitlines() if line.startswith(f"cell{depth} ")]
        assert line.split()[-7:] == [
            *(f"{plan.parameters:,}", "1,000", "524,288"),
            *(f"{plan.hours:,.2f}", f"{plan.gpu_hours:,.2f}", "to", "do"),
        ]
    assert f"still to run: 2 cells, {total:,.2f} GPU-hours" in said.out
    assert "8 GPUs of 40 GiB a cell, peak 100 TFLOP/s each" in said.out
    assert "note: no training data in data/wmt17.en-de: make it with `bash" in said.err


def test_a_rehearsal_is_kept_apart_from_the_real_runs(
    file: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--dry-run", "--gpus", 0, "--data", data)
    folder = file.parent / "runs"
    assert sweep(file, *words) == 0
    assert capsys.readouterr().out.startswith(f"A small sweep: {folder}\n")
    assert sweep(file, *words, "--tiny") == 0
    assert capsys.readouterr().out.startswith(f"A small sweep: {folder}.tiny\n")


def test_hours_that_cannot_be_known_are_not_made_up(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(file, "--dry-run", "--gpus", 0) == 0
    out = capsys.readouterr().out
    assert "core-hours are not known: give the peak of the device" in out
    (line,) = [line for line in out.splitlines() if line.startswith("cell6 ")]
    assert line.split()[-4:] == ["?", "?", "to", "do"]


def test_missing_data_end_a_sweep_before_it_has_begun(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(file, "--gpus", 0, "--data", tmp_path / "none") == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert "no training data in" in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("fakes")
def test_a_sweep_ends_in_a_table_and_does_nothing_twice(
    file: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--gpus", 0, "--data", data)
    assert sweep(file, *words, "--only", "*6") == 0
    assert starts(file) == {"cell6": 1}
    assert sweep(file, *words) == 0
    assert starts(file) == {"cell18": 1, "cell6": 1}
    capsys.readouterr()
    assert sweep(file, *words) == 0
    said = capsys.readouterr()
    assert "every cell has its result: nothing to do" in said.err
    assert "2 cells: 0 to do, 0 unfinished, 2 done" in said.err
    assert starts(file) == {"cell18": 1, "cell6": 1}
    (row,) = [line for line in said.out.splitlines() if line.startswith("deepnet_transformer")]
    assert row.split().count("27.5") == 2
    markdown = (file.parent / "runs" / "report.md").read_text(encoding="utf-8")
    assert "deepnet_transformer" in markdown
    assert "![table1](table1.png)" in markdown
    assert (file.parent / "runs" / "table1.png").read_bytes().startswith(b"\x89PNG")
    assert ",27.5," in (file.parent / "runs" / "report.csv").read_text(encoding="utf-8")


@pytest.mark.usefixtures("fakes")
def test_a_verdict_follows_the_rule_when_the_sweep_is_started_again(
    file: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--gpus", 0, "--data", data, "--only", "*6")
    assert sweep(file, *words) == 0
    record = file.parent / "runs" / "cell6" / "sweep.json"
    told = json.loads(record.read_text(encoding="utf-8"))
    told |= {"status": "diverged", "reason": "diverged: BLEU"}
    del told["sha256"]
    record.write_text(json.dumps(told), encoding="utf-8")
    capsys.readouterr()
    assert sweep(file, *words) == 0
    said = capsys.readouterr()
    assert "cell6: BLEU 27.50 (by today's rule; it was: diverged: BLEU)" in said.err
    assert json.loads(record.read_text(encoding="utf-8"))["status"] == "done"
    (row,) = [line for line in said.out.splitlines() if line.startswith("deepnet_transformer")]
    assert "27.5" in row.split()
    assert starts(file) == {"cell6": 1}


@pytest.mark.usefixtures("fakes")
def test_a_comparison_without_scores_may_be_scored_afterwards(
    file: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--gpus", 0, "--data", data, "--only", "*6")
    assert sweep(file, *words, "score=false") == 0
    record = file.parent / "runs" / "cell6" / "sweep.json"
    assert json.loads(record.read_text(encoding="utf-8"))["score"] is None
    capsys.readouterr()
    assert sweep(file, *words, "score=true") == 0
    said = capsys.readouterr()
    assert "cell6: trained without a score, which is made now" in said.err
    assert json.loads(record.read_text(encoding="utf-8"))["reason"] == "BLEU 27.50"
    (row,) = [line for line in said.out.splitlines() if line.startswith("deepnet_transformer")]
    assert "27.5" in row.split()
    assert sweep(file, *words, "score=false") == 0
    assert "every cell has its result: nothing to do" in capsys.readouterr().err
    assert json.loads(record.read_text(encoding="utf-8"))["reason"] == "BLEU 27.50"


def test_another_config_is_planned_with(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--dry-run", "--gpus", 0, "--config", "multi30k_tiny")
    assert sweep(file, *words) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("cell6 ")]
    assert line.split()[-6:-4] == ["200", "1,000"]
    assert sweep(file, *words[:-1], "none") == 2
    assert "no config 'none'" in capsys.readouterr().err


@pytest.mark.usefixtures("fakes")
def test_a_crash_is_status_1_and_tried_again_only_on_request(
    file: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(
        file.read_text(encoding="utf-8").replace("cell{depth}", "crash{depth}"), encoding="utf-8"
    )
    words = ("--gpus", 0, "--data", data)
    assert sweep(file, *words) == 1
    said = capsys.readouterr()
    assert "failed: crash6, crash18; see sweep.json" in said.err
    assert said.out.count("crashed") == 2
    assert sweep(file, *words) == 1
    assert starts(file) == {"crash18": 1, "crash6": 1}
    for name in starts(file):
        (file.parent / "runs" / name / "mended").touch()
    assert sweep(file, *words, "--retry=diverged") == 1
    assert starts(file) == {"crash18": 1, "crash6": 1}
    assert sweep(file, *words, "--retry") == 0
    assert starts(file) == {"crash18": 2, "crash6": 2}


@pytest.mark.usefixtures("fakes")
def test_a_folder_of_other_settings_is_refused_before_anything_starts(
    file: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--gpus", 0, "--data", data)
    assert sweep(file, *words, "--only", "*6") == 0
    capsys.readouterr()
    assert sweep(file, *words, "lr=0.25") == 2
    assert "(lr 1.5e-3 -> 0.25): choose another folder" in capsys.readouterr().err
    assert starts(file) == {"cell6": 1}


def test_seeds_that_are_no_numbers_are_refused(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seeds in ("1,x", "2,2", ""):
        assert sweep(file, "--dry-run", "--seeds", seeds) == 2
        assert "different numbers are expected" in capsys.readouterr().err
