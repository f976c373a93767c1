"""`deepnet sweep` with simulated cells: results, restarts, signals, the plan."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.ended import PREEMPTED
from fairseq_deepnet.experiments import sweep
from fairseq_deepnet.experiments.grid import Cell, check, expand, load_sweep, override
from fairseq_deepnet.experiments.results import Status, read_json
from fairseq_deepnet.files import try_lock
from fairseq_deepnet.tools.devices import threads_of
from tests.support.cells import write_config, write_log, write_score
from tests.support.shell import Refused, wait_until

CHILD = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
place = Path(sys.argv[1])
cell = json.loads((place / "cell.json").read_text())
with (place / "calls").open("a") as calls:
    calls.write(json.dumps([cell["train"], cell["score"]]) + "\\n")
calls = len((place / "calls").read_text().splitlines())
if place.name == "crash" or (place.name == "flaky" and calls == 1):
    sys.exit(3)
if place.name == "slow" and calls == 1:
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), sys.exit(85)))
    (place / "began").write_text(str(os.getpid()))
    time.sleep(60)
status = "diverged" if place.name == "nan" and calls == 1 else "done"
(place / "config.yaml").write_text((place / "cell.yaml").read_text())
result = {"status": status, "reason": "as planned", "scored": cell["score"], "score": None}
(place / "result.json").write_text(json.dumps(result))
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "child.py"
    file.write_text(CHILD, encoding="utf-8")
    monkeypatch.setattr(sweep, "PROCESS", (sys.executable, str(file)))
    return file


@pytest.fixture
def definition(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for name in ("train.de-en.de.idx", "dict.de.txt"):
        (tmp_path / "data" / name).touch()
    file = tmp_path / "own.yaml"
    file.write_text(
        "config: multi30k_tiny\ncell: '{arch}'\ntitle: Simulated\n"
        f"options: {{recipe.data: {tmp_path / 'data'}}}\n"
        "factors: {arch: {set: source-lang, values: [good, crash]}}\nscore: {BEAM: 4}\n",
        encoding="utf-8",
    )
    return file


class Rig:
    """A sweep whose cells are simulated."""

    def __init__(self, definition: Path) -> None:
        self.definition, self.folder = definition, definition.parent / "runs"

    def cells(self, names: str, *words: str, seed: int = 1) -> list[Cell]:
        loaded = load_sweep(str(self.definition))
        return expand(override(loaded, [f"arch={names}", *words]), [seed])

    def run(self, names: str, *words: str, slots: int = 1) -> list[str]:
        shares = [sweep.Share(["--gpus", "0"], ["--gpus", "0"])] * slots
        cells = self.cells(names, *words)
        sweep.train(load_sweep(str(self.definition)), cells, self.folder, shares)
        return [sweep.status_of(self.folder / cell.name).value for cell in cells]

    def calls(self, name: str) -> list[Any]:
        text = (self.folder / name / "calls").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def rig(definition: Path, child: Path) -> Rig:
    return Rig(definition)


def test_complete_and_diverged_cells_are_not_run_again_and_a_crash_stops_no_cell(rig: Rig) -> None:
    assert rig.run("flaky,good,nan", slots=2) == ["failed", "done", "diverged"]
    assert rig.calls("good") == [[["--gpus", "0"], ["--beam", "4"]]]
    record = read_json(rig.folder / "good" / "cell.json")
    assert record["places"] == [{"panel": "main", "values": {"arch": "good"}, "seed": 1}]
    assert "status 3" in read_json(rig.folder / "flaky" / "result.json")["reason"]
    assert rig.run("flaky,good,nan") == ["done", "done", "diverged"]
    assert [len(rig.calls(name)) for name in ("flaky", "good", "nan")] == [2, 1, 1]


def test_folders_of_cells_and_of_text_are_relative_to_the_working_folder(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rig.folder = Path("relative")
    assert rig.run("good") == ["done"]
    (cell,) = rig.cells("good", "score.TEXT=texts")
    assert cell.score == ["--beam", "4", "--text", str(tmp_path / "texts")]


def test_a_sweep_under_nohup_ignores_the_end_of_its_terminal(rig: Rig) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        rig.run("good")
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_score_can_be_requested_later(rig: Rig) -> None:
    assert rig.run("good", "score=false") == ["done"]
    assert rig.run("good", "score.LENPEN=2") == ["done"]
    assert [call[1] for call in rig.calls("good")] == [None, ["--beam", "4", "--lenpen", "2"]]
    assert rig.run("good", "score=false") == ["done"]
    assert len(rig.calls("good")) == 2


def test_a_cell_with_changed_settings_is_refused(rig: Rig) -> None:
    rig.run("good")
    with pytest.raises(ValueError, match=r"other settings \(lr .* -> 9e-3\): choose another"):
        sweep.refuse_changes(rig.folder, rig.cells("good", "lr=9e-3"))
    sweep.refuse_changes(rig.folder, rig.cells("good", "log-interval=7"))  # changes no number
    sweep.refuse_changes(rig.folder, rig.cells("good", seed=2))
    with pytest.raises(ValueError, match=r"good was run with other settings \(dropout "):
        sweep.refuse_changes(rig.folder, rig.cells("good", "dropout=0.4", seed=2))


def test_a_finished_cell_joins_new_panels(rig: Rig) -> None:
    rig.run("good")
    (cell,) = cells = rig.cells("good")
    cell.places.append({"panel": "new", "values": {"arch": "good"}, "seed": 1})
    sweep.train(load_sweep(str(rig.definition)), cells, rig.folder, [])
    assert read_json(rig.folder / "good" / "cell.json")["places"] == cell.places


def test_a_cell_that_failed_before_its_first_update_does_not_block_other_settings(rig: Rig) -> None:
    rig.run("crash")
    sweep.refuse_changes(rig.folder, rig.cells("crash", "lr=9e-3"))
    write_log(rig.folder / "crash", {10: 4.5})
    with pytest.raises(ValueError, match=r"crash was run with other settings \(lr .* -> 9e-3\)"):
        sweep.refuse_changes(rig.folder, rig.cells("crash", "lr=9e-3"))
    (rig.folder / "crash" / "train.log").unlink()
    (rig.folder / "crash" / "checkpoints").mkdir()
    (rig.folder / "crash" / "checkpoints" / "checkpoint_last.pt").touch()
    with pytest.raises(ValueError, match="was run with other settings"):
        sweep.refuse_changes(rig.folder, rig.cells("crash", "lr=9e-3"))


def is_running(process: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_sweep_leaves_no_process_and_resumes(rig: Rig, number: int) -> None:
    code = (
        "import sys; from tests.unit.test_sweep import Rig; from pathlib import Path\n"
        "from fairseq_deepnet.experiments import sweep\n"
        "sweep.PROCESS = (sys.executable, sys.argv[2])\n"
        "Rig(Path(sys.argv[1])).run('slow')\n"
    )
    words = [sys.executable, "-c", code, rig.definition, rig.definition.parent / "child.py"]
    environment = os.environ | {"PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)
    began = rig.folder / "slow" / "began"
    wait_until(lambda: began.is_file() and bool(began.read_text(encoding="utf-8")))
    running = int(began.read_text(encoding="utf-8"))
    process.send_signal(number)
    assert process.wait(timeout=30) != 0
    with (rig.folder / ".lock").open("wb") as lock:  # the cell of a killed sweep is still ending
        assert try_lock(lock) == (number == signal.SIGTERM)
    wait_until(lambda: not is_running(running))
    assert sweep.status_of(rig.folder / "slow") is Status.UNFINISHED
    assert rig.run("slow") == ["done"]


@pytest.mark.parametrize(
    ("gpus", "parallel", "visible", "expected"),
    [
        ("all", 2, [], [["--gpus", "0", "--threads", str(threads_of(2, 8))]] * 2),
        ("all", 2, ["3", "5"], [["--gpus", "1"], ["--gpus", "1"]]),
        ("2", 1, ["0", "1", "2"], [["--gpus", "2"]]),
    ],
)
def test_parallel_cells_share_the_machine(
    gpus: str, parallel: int, visible: list[str], expected: list[list[str]]
) -> None:
    shares = sweep.divide(gpus, parallel, visible, cores=8)
    assert [share.train for share in shares] == expected
    if visible:
        names = [name for share in shares for name in str(share.gpus).split(",")]
        assert len(set(names)) == len(names) == parallel * int(expected[0][1])


def test_the_plan_shows_every_option_and_starts_no_cell(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", str(rig.definition), "--gpus", "0", "--dry-run"]
    assert cli.main([*words, "max-update=40"]) == 0
    text = capsys.readouterr().out
    assert "runs/own\n" in text
    (line,) = [line for line in text.splitlines() if line.startswith("good ")]
    assert "to do" in line
    assert "source-lang good" in line
    assert "max-update 40" in line
    assert not rig.folder.exists()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("acrh=good", "command line: unknown --acrh=good; did you mean arch?"),
        ("max-updaet=3", "command line: unknown --max-updaet=3; did you mean --max-update?"),
        ("lr-scheduler=inverse", "argument --lr-scheduler: invalid choice: 'inverse'"),
        ("fp16=true", "command line: fp16: deepnet train sets this option"),
        ("PRECISION=fp61", "command line: argument --precision: invalid choice: 'fp61'"),
        ("--seeds=1,x", "argument --seeds: invalid value: '1,x'"),
        ("score.BEAM=x", "command line: argument --beam: 'x' is not a positive integer"),
        ("score.max-len-bb=9", "command line: unknown --max-len-bb 9; did you mean --max-len-b?"),
        ("score.max-tokens=9", "command line: --max-tokens is set by deepnet evaluate"),
        ("score.seed=9", "command line: --seed has no effect in deepnet evaluate"),
        ("score.beam=4", "score: beam is not allowed; choose from AVERAGE, BATCH, BEAM"),
    ],
)
def test_an_invalid_option_is_refused_before_anything_is_written(
    rig: Rig, word: str, message: str, refused: Refused
) -> None:
    options = ["--runs", rig.folder, "--gpus", "0"]
    assert message in refused("sweep", rig.definition, *options, word)
    assert not rig.folder.exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("options: {", "options: {max-updaet: 3, ", "own.yaml: unknown --max-updaet=3"),
        ("score: {", "score: {max-len-bb: 9, ", "own.yaml: unknown --max-len-bb 9"),
        ("config: multi30k_tiny", "config: mine.yaml", "mine: unknown --max-updaet=3"),
    ],
)
def test_an_invalid_option_in_a_file_is_refused_with_the_file_s_name(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    monkeypatch.chdir(rig.definition.parent)
    Path("mine.yaml").write_text("arch: deepnet_transformer\nmax-updaet: 3\n", encoding="utf-8")
    text = rig.definition.read_text(encoding="utf-8")
    rig.definition.write_text(text.replace(old, new), encoding="utf-8")
    loaded = load_sweep(str(rig.definition))
    with pytest.raises(ValueError, match=message):
        check(loaded, expand(override(loaded, [])), [])


def test_the_command_runs_cells_and_writes_results_and_tables(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", str(rig.definition), "--runs", str(rig.folder), "--gpus", "0"]
    assert cli.main(words) == 1
    printed = capsys.readouterr()
    assert "failed: crash; see result.json of each" in printed.err
    assert "crashed" in printed.out
    assert {"results.csv", "report.md", "report.csv"} <= {p.name for p in rig.folder.iterdir()}
    assert cli.main(["report", str(rig.folder / "results.csv")]) == 0
    assert capsys.readouterr().out == printed.out


def prepared(run: Path, score: list[str] | None = None) -> Path:
    write_config(run, warmup_updates=5)
    record = {"train": ["--gpus", "0"], "score": score, "score_share": []}
    (run / "cell.json").write_text(json.dumps(record | {"places": []}), encoding="utf-8")
    (run / "cell.yaml").write_text("lr: 0.1\n", encoding="utf-8")
    return run


def trained(
    monkeypatch: pytest.MonkeyPatch, run: Path, losses: dict[int, float], status: int = 0
) -> list[list[str]]:
    """Simulate `deepnet train` and `deepnet evaluate`."""
    calls: list[list[str]] = []

    def attempt(command: object, module: Any, words: list[str]) -> tuple[int, Any]:
        calls.append(words)
        if module is sweep.training:
            write_log(run, losses)
            return 0, status
        score = run.resolve() / write_score(run, 27.5)
        return 0, (score.rename(score.with_name("test.other.json")), "BLEU 27.50")

    monkeypatch.setattr(sweep, "attempt", attempt)
    return calls


def test_a_cell_is_trained_and_scored_with_the_arguments_in_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = prepared(tmp_path / "run", ["--beam", "5", "--", "--max-len-b", "9"])
    calls = trained(monkeypatch, run, {10: 4.5})
    monkeypatch.setenv("OMP_NUM_THREADS", "8")  # as training sets it
    assert sweep.run_cell(run) == 0
    assert os.environ["OMP_NUM_THREADS"] == "1"
    assert calls[0] == [str(run / "cell.yaml"), "--run", str(run), "--gpus", "0"]
    assert calls[1] == [str(run), "--beam", "5", "--", "--max-len-b", "9"]
    result = read_json(run / "result.json")
    assert (result["status"], result["updates"]) == ("done", 10)
    assert result["reason"] == "BLEU 27.50"


@pytest.mark.parametrize(
    ("status", "losses", "expected", "reason"),
    [
        (0, {10: 4.5}, "done", "trained, validation nll 3.000"),
        (1, {10: 4.5}, "failed", "training ended with status 1: out of luck"),
        (1, {10: float("nan")}, "diverged", "the last validation loss, at update 10, is nan"),
        (PREEMPTED, {10: 4.5}, None, None),
    ],
)
def test_the_result_states_how_a_run_ended(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    losses: dict[int, float],
    expected: str | None,
    reason: str | None,
) -> None:
    run = prepared(tmp_path / "run")
    (run / "console.log").write_text("out of luck\n", encoding="utf-8")
    trained(monkeypatch, run, losses, status)
    assert sweep.run_cell(run) == (PREEMPTED if expected is None else 0)
    result = read_json(run / "result.json")
    assert result.get("status") == expected
    assert reason is None or reason in result["reason"]
