"""Sweeps with scripts that only pretend to train: results, restarts, crashes, Ctrl-C, sharing."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_deepnet.divergence.verdict import Evidence
from fairseq_deepnet.experiments import runner, state
from fairseq_deepnet.experiments.cells import SET_BY_SWEEPS, Cell, CellPlace
from fairseq_deepnet.experiments.costs import shares
from fairseq_deepnet.experiments.definition import SweepPanel
from fairseq_deepnet.experiments.runner import Runner, Scripts, start, stop
from fairseq_deepnet.experiments.runs import Status, read_cell_record
from fairseq_deepnet.sharding.split_record import SPLIT

TRAIN = """
cd "$RUN"
echo "$(basename "$1") GPUS=$GPUS THREADS=$THREADS" \\
    "PRECISION=${PRECISION:-none} DATA=${DATA:-none}" >>calls
cp "$1" config.yaml
say() { echo "2026-01-02 03:04:05 | INFO | valid | $1" >>train.log; }
say '{"epoch": 1, "valid_loss": "4.5", "valid_nll_loss": "3.0", "valid_num_updates": "10"}'
case $(basename "$RUN") in
    crash*) echo "RuntimeError: out of luck"; exit 3 ;;
    nan*) echo "FloatingPointError: gradients are Nan/Inf" >>train.log; exit 1 ;;
    flaky*) [[ $(wc -l <calls) -gt 1 ]] || { echo "RuntimeError: this time"; exit 1; } ;;
    slow*)
        trap 'echo stopped >>calls; exit 130' TERM
        touch began
        for i in $(seq 600); do sleep 0.1; done ;;
esac
touch done
"""
SCORE = """
mkdir -p "$1/scores"
echo "BEAM=$BEAM ${*:2}" >>"$1/scored"
case $(basename "$1") in
    unscored*) exit 4 ;;
    empty*) exit 0 ;;
    zero*) bleu=0.1 ;;
    *) bleu=27.5 ;;
esac
name=${SPLIT:-test}.checkpoint_best.beam${BEAM:-5}.lenpen1
echo '{"bleu": '$bleu', "bleu_signature": "s", "lines": 5}' >"$1/scores/$name.json"
"""
SHARE = {"GPUS": "0", "THREADS": "1"}


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    found = []
    for name, body in (("train", TRAIN), ("score", SCORE)):
        file = tmp_path / f"{name}.sh"
        file.write_text(f"set -euo pipefail\n{body}", encoding="utf-8")
        found.append(("bash", str(file)))
    return Scripts(*found, ("--max-len-b", "5"))


@pytest.fixture
def cells(tmp_path: Path) -> Any:
    config = tmp_path / "config.yaml"
    config.write_text("lr: 0.1\nrecipe:\n  data: data/none\n", encoding="utf-8")

    def make(*names: str, scored: bool = True) -> list[Cell]:
        score = {"BEAM": "4"} if scored else None
        panel = SweepPanel("main", str(config), "{x}", (), {}, {}, score, None, None, "all")
        places = {name: CellPlace("main", {"x": name}, 1) for name in names}
        return [Cell(n, panel, {"seed": 1}, {}, score, [place]) for n, place in places.items()]

    return make


class Sweep:
    """A runner on a folder, and what it said."""

    def __init__(self, folder: Path, scripts: Scripts, slots: int = 1) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.runner = Runner(
            folder, [SHARE] * slots, self.lines.append, "small.yaml", scripts, pause=0.01
        )

    def run(self, cells: list[Cell]) -> dict[str, str]:
        self.runner.run(cells)
        return {cell.name: self.record(cell.name)["status"] for cell in cells}

    def record(self, name: str) -> dict[str, Any]:
        return read_cell_record(self.folder / name)


@pytest.fixture
def sweep(tmp_path: Path, scripts: Scripts) -> Sweep:
    return Sweep(tmp_path / "runs", scripts)


def test_a_cell_is_trained_and_scored_and_its_record_says_so(sweep: Sweep, cells: Any) -> None:
    assert sweep.run(cells("good")) == {"good": "done"}
    run, record = sweep.folder / "good", sweep.record("good")
    assert (run / "calls").read_text(
        encoding="utf-8"
    ) == "cell.yaml GPUS=0 THREADS=1 PRECISION=none DATA=none\n"
    assert (run / "scored").read_text(encoding="utf-8") == "BEAM=4 --max-len-b 5\n"
    assert record["score"] == "scores/test.checkpoint_best.beam4.lenpen1.json"
    assert (record["updates"], record["last_valid_nll"], record["starts"]) == (10, 3.0, 1)
    assert record["places"] == [{"panel": "main", "values": {"x": "good"}, "seed": 1}]
    assert record["reason"] == "BLEU 27.50"
    assert sweep.lines[0].startswith("[1/1] good: training, see ")
    assert sweep.lines[-1].startswith("[1/1] good: BLEU 27.50")


def test_a_cell_reports_the_score_that_it_asked_for_and_no_newer_one(
    sweep: Sweep, cells: Any
) -> None:
    (cell,) = cells("good")
    scores = sweep.folder / "good" / "scores"
    scores.mkdir(parents=True)
    other = scores / "test.checkpoint_best.beam5.lenpen1.json"
    other.write_text('{"bleu": 1.0, "bleu_signature": "s", "lines": 5}', encoding="utf-8")
    os.utime(other, (2**33, 2**33))
    cell.score = {"BEAM": "4", "SPLIT": "valid"}
    assert sweep.run([cell]) == {"good": "done"}
    assert sweep.record("good")["score"] == "scores/valid.checkpoint_best.beam4.lenpen1.json"
    assert sweep.record("good")["reason"] == "BLEU 27.50"
    # as an earlier version recorded it
    state.write(sweep.folder / "good", cell, Status.DONE, score=f"scores/{other.name}")
    said = state.judge_again(sweep.folder / "good", cell)
    assert sweep.record("good")["score"] == "scores/valid.checkpoint_best.beam4.lenpen1.json", said


@pytest.mark.parametrize(
    ("score", "due"),
    [
        ({}, "scores/test.checkpoint_best.beam5.lenpen1.json"),
        ({"AVERAGE": "5", "LENPEN": "0.60"}, "scores/test.average_5.beam5.lenpen0.6.json"),
        (
            {"ENGINE": "ctranslate2", "max-len-b": "9"},
            "scores/test.checkpoint_best.beam5.lenpen1.ctranslate2-int8.max-len-b9.json",
        ),
    ],
)
def test_the_name_of_a_cell_s_score_follows_from_its_options(
    tmp_path: Path, cells: Any, score: dict[str, str], due: str
) -> None:
    (cell,) = cells("good")
    cell.score = score
    assert state.score_asked_for(tmp_path, cell) == due
    (tmp_path / due.removesuffix(".json")).mkdir(parents=True)
    assert state.score_asked_for(tmp_path, cell) == due.removesuffix(".json")
    cell.score = {"TEXT": "news", "SPLIT": "valid"}
    found = state.score_asked_for(tmp_path, cell)
    assert found is not None
    assert found.startswith("scores/text.news-")
    assert found.endswith(".valid.checkpoint_best.beam5.lenpen1.json")
    cell.score = None
    assert state.score_asked_for(tmp_path, cell) is None


def test_crashes_and_divergence_are_results_and_the_sweep_goes_on(sweep: Sweep, cells: Any) -> None:
    names = ("crash", "nan", "zero", "unscored", "empty", "good")
    assert sweep.run(cells(*names)) == {
        "crash": "failed",
        "nan": "diverged",
        "zero": "done",
        "unscored": "failed",
        "empty": "failed",
        "good": "done",
    }
    crash = sweep.record("crash")
    assert crash["reason"] == "training ended with status 3: RuntimeError: out of luck"
    assert crash["log_tail"] == ["RuntimeError: out of luck"]
    assert (crash["exit_status"], crash["last_valid_nll"], crash["score"]) == (3, 3.0, None)
    assert sweep.record("nan")["reason"] == (
        "diverged: fairseq gave up after update 10: FloatingPointError"
    )
    # a young model scores nothing, however well it learns
    assert sweep.record("zero")["reason"] == "BLEU 0.10"
    assert sweep.record("zero")["score"] == "scores/test.checkpoint_best.beam4.lenpen1.json"
    assert sweep.record("unscored")["reason"].startswith("scoring ended with status 4")
    assert sweep.record("empty")["reason"] == (
        "scripts/eval_bleu.sh left no score scores/test.checkpoint_best.beam4.lenpen1.json"
    )
    assert not (sweep.folder / "nan" / "scored").exists()


def test_a_training_that_was_killed_before_it_learnt_has_failed(
    sweep: Sweep, cells: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalled = Evidence(valid=((5, 9.0), (10, 9.0)), unigram=8.0)
    monkeypatch.setattr(state, "read_evidence", lambda run: stalled)
    assert sweep.run(cells("good", "crash")) == {"good": "diverged", "crash": "failed"}
    assert sweep.record("crash")["reason"].startswith("training ended with status 3")
    # scoring that broke off says nothing of a training that came to its end
    assert sweep.run(cells("unscored")) == {"unscored": "diverged"}
    (crash,) = cells("crash")
    state.write(sweep.folder / "crash", crash, Status.DIVERGED, reason="diverged: stalled")
    said = state.judge_again(sweep.folder / "crash", crash)
    assert said is not None
    assert state.status_of(sweep.folder / "crash") is Status.FAILED


def test_a_cell_whose_losses_are_wanted_alone_is_not_scored(sweep: Sweep, cells: Any) -> None:
    assert sweep.run(cells("good", scored=False)) == {"good": "done"}
    assert not (sweep.folder / "good" / "scored").exists()
    assert sweep.record("good")["reason"] == "trained, validation nll 3.000"


def test_variables_that_would_change_a_cell_do_not_reach_its_scripts(
    sweep: Sweep, cells: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA", "elsewhere")
    monkeypatch.setenv("THREADS", "64")
    monkeypatch.setenv("PRECISION", "fp16")  # a property of the machine, so it does
    (cell,) = cells("good")
    sweep.run([cell])
    calls = (sweep.folder / "good" / "calls").read_text(encoding="utf-8")
    assert "THREADS=1 PRECISION=fp16 DATA=none" in calls
    cell.variables["PRECISION"] = "fp32"
    sweep.run([cell])
    assert "PRECISION=fp32" in (sweep.folder / "good" / "calls").read_text(encoding="utf-8")


def test_a_failed_cell_that_is_tried_again_keeps_its_folder(sweep: Sweep, cells: Any) -> None:
    assert sweep.run(cells("flaky")) == {"flaky": "failed"}
    state.begin_again(sweep.folder / "flaky")
    assert state.status_of(sweep.folder / "flaky") is Status.TO_DO
    assert sweep.run(cells("flaky")) == {"flaky": "done"}
    assert len((sweep.folder / "flaky" / "calls").read_text(encoding="utf-8").splitlines()) == 2


def test_a_diverged_cell_that_is_tried_again_starts_anew_beside_the_old(
    sweep: Sweep, cells: Any
) -> None:
    for number in (1, 2):
        assert sweep.run(cells("nan")) == {"nan": "diverged"}
        state.begin_again(sweep.folder / "nan")
        assert not (sweep.folder / "nan").exists()
        assert (sweep.folder / f".nan.diverged{number}" / "sweep.json").is_file()


def test_a_verdict_of_an_earlier_rule_is_brought_up_to_date(sweep: Sweep, cells: Any) -> None:
    (cell,) = cells("good")
    sweep.run([cell])
    run = sweep.folder / "good"
    assert state.judge_again(run, cell) is None
    state.write(run, cell, Status.DIVERGED, reason="diverged: test BLEU is 0.1, below 1")
    said = state.judge_again(run, cell)
    assert said == (
        "good: BLEU 27.50 (by today's rule; it was: diverged: test BLEU is 0.1, below 1)"
    )
    assert state.status_of(run) is Status.DONE
    assert sweep.record("good")["score"] == "scores/test.checkpoint_best.beam4.lenpen1.json"
    with (run / "train.log").open("a", encoding="utf-8") as log:
        log.write("FloatingPointError: gradients are Nan/Inf\n")
    said = state.judge_again(run, cell)
    assert said is not None
    assert said.startswith("good: diverged: fairseq gave up")
    assert state.status_of(run) is Status.DIVERGED


def test_a_cell_that_was_not_scored_stays_sound_and_lacks_the_score_that_is_wanted_now(
    sweep: Sweep, cells: Any
) -> None:
    (cell,) = cells("good", scored=False)
    sweep.run([cell])
    run = sweep.folder / "good"
    assert not state.lacks_score(run, cell)
    cell.score = {}
    assert state.judge_again(run, cell) is None
    assert state.status_of(run) is Status.DONE
    assert state.lacks_score(run, cell)
    assert not state.lacks_score(sweep.folder / "never-ran", cell)


def test_a_score_is_kept_when_the_sweep_is_started_without_scoring(
    sweep: Sweep, cells: Any
) -> None:
    (cell,) = cells("good")
    sweep.run([cell])
    run = sweep.folder / "good"
    before = sweep.record("good")
    cell.score = None
    assert state.judge_again(run, cell) is None
    assert sweep.record("good") == before
    state.write(run, cell, Status.DIVERGED, reason="diverged: by a rule of yore")
    assert state.judge_again(run, cell) is not None
    assert sweep.record("good")["score"] == "scores/test.checkpoint_best.beam4.lenpen1.json"
    (run / "scores" / "test.checkpoint_best.beam4.lenpen1.json").unlink()
    state.judge_again(run, cell)
    cell.score = {}
    assert state.lacks_score(run, cell)


def test_a_cell_stands_where_the_definition_has_it_now(sweep: Sweep, cells: Any) -> None:
    (cell,) = cells("good")
    sweep.run([cell])
    cell.places = [dataclasses.replace(cell.places[0], panel="another")]
    assert state.judge_again(sweep.folder / "good", cell) is None
    assert [place["panel"] for place in sweep.record("good")["places"]] == ["another"]


def test_what_failed_or_never_ran_is_not_judged_again(sweep: Sweep, cells: Any) -> None:
    crash, later = cells("crash", "later")
    sweep.run([crash])
    before = sweep.record("crash")
    assert state.judge_again(sweep.folder / "crash", crash) is None
    assert sweep.record("crash") == before
    assert state.judge_again(sweep.folder / "later", later) is None
    assert not (sweep.folder / "later").exists()


@pytest.mark.parametrize(("name", "kept"), [("good", 1), ("nan", 1), ("crash", 3)])
def test_only_the_best_checkpoint_stays_of_a_cell_with_its_result(
    sweep: Sweep, cells: Any, name: str, kept: int
) -> None:
    train = Path(sweep.runner.scripts.train[1])
    make = "mkdir -p checkpoints; touch checkpoints/checkpoint_{best,last,1_10}.pt"
    train.write_text(
        train.read_text(encoding="utf-8").replace('cd "$RUN"', f'cd "$RUN"; {make}'),
        encoding="utf-8",
    )
    (cell,) = cells(name)
    cell.panel = dataclasses.replace(cell.panel, keep="best")
    sweep.run([cell])
    left = sorted(file.name for file in (sweep.folder / name / "checkpoints").iterdir())
    assert len(left) == kept
    assert "checkpoint_best.pt" in left


def test_every_checkpoint_stays_by_default_and_where_there_is_no_best_one(
    sweep: Sweep, cells: Any
) -> None:
    (cell,) = cells("good")
    sweep.run([cell])
    folder = sweep.folder / "good" / "checkpoints"
    folder.mkdir()
    (folder / "checkpoint_last.pt").touch()
    cell.panel = dataclasses.replace(cell.panel, keep="best")
    state.prune(sweep.folder / "good", cell)
    (folder / "checkpoint_best.pt").touch()
    cell.panel = dataclasses.replace(cell.panel, keep="all")
    state.prune(sweep.folder / "good", cell)
    assert len(list(folder.iterdir())) == 2


def test_rows_of_split_checkpoints_that_are_not_kept_go_with_them(sweep: Sweep, cells: Any) -> None:
    (cell,) = cells("good")
    sweep.run([cell])
    folder = sweep.folder / "good" / "checkpoints"
    for update, name in ((1, "best"), (2, "last")):
        rows = folder / "split" / f"update_{update}_1"
        rows.mkdir(parents=True)
        (rows / ".metadata").touch()
        torch.save({SPLIT: {"folder": rows.name}}, folder / f"checkpoint_{name}.pt")
    cell.panel = dataclasses.replace(cell.panel, keep="best")
    state.prune(sweep.folder / "good", cell)
    assert [path.name for path in (folder / "split").iterdir()] == ["update_1_1"]


def test_other_settings_than_those_recorded_are_refused(sweep: Sweep, cells: Any) -> None:
    (cell,) = cells("good")
    sweep.run([cell])
    state.refuse_changes(sweep.folder, [cell])
    cell.options["lr"] = 0.2
    with pytest.raises(ValueError, match=r"good was run with other settings \(lr 0.1 -> 0.2\)"):
        state.refuse_changes(sweep.folder, [cell])


def test_a_cell_that_was_not_scored_may_be_scored_in_any_way(sweep: Sweep, cells: Any) -> None:
    (cell,) = cells("good", scored=False)
    sweep.run([cell])
    cell.score = {"BEAM": "4"}
    state.refuse_changes(sweep.folder, [cell])
    assert state.lacks_score(sweep.folder / "good", cell)
    sweep.run([cell])
    cell.score = {"BEAM": "5"}
    with pytest.raises(ValueError, match=r"other settings \(score.BEAM 4 -> 5\)"):
        state.refuse_changes(sweep.folder, [cell])


def test_a_damaged_record_is_named_and_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"sweep.json is damaged: .*; remove it to run the cell"):
        state.status_of(tmp_path)


def test_one_sweep_a_folder(tmp_path: Path) -> None:
    with state.locked(tmp_path), pytest.raises(ValueError, match="another sweep is at work"):
        state.locked(tmp_path).__enter__()
    with state.locked(tmp_path):
        pass


def test_cells_at_once_share_gpus_or_cores() -> None:
    assert shares("all", 2, ["0", "1", "2", "3", "4"], 8) == [
        {"GPUS": "2", "CUDA_VISIBLE_DEVICES": "0,1"},
        {"GPUS": "2", "CUDA_VISIBLE_DEVICES": "2,3"},
    ]
    assert shares("2", 1, ["4", "6", "7"], 8) == [{"GPUS": "2", "CUDA_VISIBLE_DEVICES": "4,6"}]
    on_cpu = {"GPUS": "0", "THREADS": "2", "PROCESSES": "2", "OMP_NUM_THREADS": "1"}
    assert shares("0", 3, ["0"], 8) == [on_cpu] * 3
    assert shares("all", 4, [], 2)[0]["THREADS"] == "1"
    assert shares("all", 1, [], 8, threads=2) == [on_cpu]


@pytest.mark.parametrize(
    ("gpus", "parallel", "message"),
    [
        ("all", 3, "3 cells at once on 2 GPUs; at most 2"),
        ("1", 2, "2 cells at once on 1 GPU; at most 1"),
        ("4", 1, "GPUS=4, but 2 visible"),
        ("all", 0, "--parallel 0: at least 1"),
    ],
)
def test_fewer_devices_than_cells_are_refused(gpus: str, parallel: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shares(gpus, parallel, ["0", "1"], 8)


def test_two_cells_train_at_the_same_time(tmp_path: Path, scripts: Scripts, cells: Any) -> None:
    # each waits for the other, so that one after the other would never end
    meet = (
        'touch "$RUN/../$(basename "$RUN").here"\n'
        "until [[ -f $RUN/../a.here && -f $RUN/../b.here ]]; do sleep 0.05; done\n"
    )
    train = Path(scripts.train[1])
    train.write_text(
        train.read_text(encoding="utf-8").replace('cd "$RUN"', f'{meet}cd "$RUN"'), encoding="utf-8"
    )
    both = Sweep(tmp_path / "runs", scripts, slots=2)
    assert both.run(cells("a", "b")) == {"a": "done", "b": "done"}


def sweep_until_stopped(folder: Path, scripts: Scripts, cell: Cell) -> None:
    """A sweep in a process of its own; what it says goes into a file."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    said = folder.with_name("said")

    def say(text: str) -> None:
        said.write_text(
            (said.read_text(encoding="utf-8") if said.exists() else "") + f"{text}\n",
            encoding="utf-8",
        )

    try:
        Runner(folder, [SHARE], say, "small.yaml", scripts, pause=0.01).run([cell])
    except KeyboardInterrupt:
        os._exit(130)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_sweep_takes_its_scripts_along_and_leaves_the_cell_to_go_on_with(
    tmp_path: Path, scripts: Scripts, cells: Any, number: signal.Signals
) -> None:
    (cell,) = cells("slow", scored=False)
    run = tmp_path / "runs" / "slow"
    # forked: a new interpreter would take seconds to import torch
    process = multiprocessing.get_context("fork").Process(
        target=sweep_until_stopped, args=(run.parent, scripts, cell)
    )
    process.start()
    try:
        wait_for(run / "began")
        assert process.pid is not None
        os.kill(process.pid, number)
        process.join(timeout=600)
    finally:
        process.kill()
    if number == signal.SIGINT:
        assert process.exitcode == 130
        assert "stopped; the same command goes on" in (tmp_path / "said").read_text(
            encoding="utf-8"
        )
    wait_until_it_says(run / "calls", "stopped")
    assert state.status_of(run) is Status.UNFINISHED

    train = Path(scripts.train[1])
    train.write_text(
        train.read_text(encoding="utf-8").replace("slow*)", "never*)"), encoding="utf-8"
    )
    again = Sweep(run.parent, scripts)
    assert again.run([cell]) == {"slow": "done"}
    assert again.record("slow")["starts"] == 2


def wait_for(path: Path, seconds: float = 600) -> None:
    limit = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < limit, f"{path} never came"
        time.sleep(0.05)


def wait_until_it_says(path: Path, text: str, seconds: float = 600) -> None:
    limit = time.monotonic() + seconds
    while text not in path.read_text(encoding="utf-8"):
        assert time.monotonic() < limit, f"{path} never said {text}"
        time.sleep(0.05)


def test_a_training_that_is_still_ending_is_waited_for(sweep: Sweep, cells: Any) -> None:
    folder = sweep.folder / "good"
    folder.mkdir(parents=True)
    lock = folder / ".lock"
    ready, ended = folder / "ready", folder / "ended"
    command = f"exec 9>{lock}; flock 9; touch {ready}; sleep 0.5; touch {ended}"
    holder = subprocess.Popen(["bash", "-c", command])
    wait_for(ready)
    assert state.is_training(folder)
    train = Path(sweep.runner.scripts.train[1])
    train.write_text(
        train.read_text(encoding="utf-8").replace('cd "$RUN"', 'cd "$RUN"; [[ -f ended ]]'),
        encoding="utf-8",
    )
    assert sweep.run(cells("good")) == {"good": "done"}
    assert sweep.lines[0] == "[1/1] good: waiting for its last training to end"
    assert holder.wait() == 0
    assert not state.is_training(folder)


def test_what_does_not_heed_the_signal_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    # a grandchild in a process group of its own, as scripts/train.sh starts fairseq-train
    pid = tmp_path / "pid"
    body = f"trap '' TERM; set -m; sleep 300 & echo $! >{pid}.part; mv {pid}.part {pid}; wait"
    process = start(["bash", "-c", body], tmp_path / "log", os.environ)
    wait_for(pid)
    stop([process], patience=0.2)
    assert process.returncode == -signal.SIGKILL
    limit = time.monotonic() + 600
    while is_alive(int(pid.read_text(encoding="utf-8"))):
        assert time.monotonic() < limit, "the grandchild outlived its script"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_the_record_is_json_even_where_a_loss_is_not_finite(sweep: Sweep, cells: Any) -> None:
    train = Path(sweep.runner.scripts.train[1])
    train.write_text(train.read_text(encoding="utf-8").replace('"3.0"', '"nan"'), encoding="utf-8")
    assert sweep.run(cells("good")) == {"good": "diverged"}

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    text = (sweep.folder / "good" / "sweep.json").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=refuse)["last_valid_nll"] == "nan"


def test_no_exported_variable_changes_how_a_cell_is_scored() -> None:
    assert SET_BY_SWEEPS["score"] <= runner._NOT_FOR_CELLS
