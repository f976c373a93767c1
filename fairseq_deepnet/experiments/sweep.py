"""`deepnet sweep`: train and score all runs of a sweep, and tabulate the results.

Each run is a cell of the sweep, with the run folder runs/SWEEP/CELL. A separate process (`python -m
fairseq_deepnet.experiments.sweep FOLDER`) trains and scores the cell with the arguments in
cell.json, and writes result.json when the run is complete, has diverged or has failed. Repeating
the `deepnet sweep` command resumes stopped and failed cells, and skips the others. grid.py
describes the definitions in configs/sweeps/.
"""

import argparse
import contextlib
import dataclasses
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.ended import INTERRUPTED, PREEMPTED, UNSAVED, end_with_parent
from fairseq_deepnet.experiments import grid, results
from fairseq_deepnet.experiments.grid import Cell
from fairseq_deepnet.experiments.results import CELL, RESULT, Status, read_json
from fairseq_deepnet.files import ROOT, say, shown, try_lock, write_text
from fairseq_deepnet.records import write_json
from fairseq_deepnet.tools import configs, tables
from fairseq_deepnet.tools.devices import all_cores, choose_devices, threads_of, visible_gpus
from fairseq_deepnet.tools.scores import read_score
from fairseq_deepnet.tools.training import train as training

CONSOLE: Final = "console.log"
PROCESS: Final = (sys.executable, "-m", "fairseq_deepnet.experiments.sweep")
"""Command that trains and scores the cell in a folder."""
PATIENCE: Final = 60.0
"""Seconds that a stopped cell has to write its last checkpoint and exit."""
_STOPPED: Final = (PREEMPTED, UNSAVED, INTERRUPTED, -signal.SIGTERM, -signal.SIGINT)
"""Exit statuses of a process that leaves its cell unfinished."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet sweep`."""
    add = parser.add_argument
    add("sweep", help="a name in configs/sweeps/ (table1, compare_methods, ...) or a file")
    values = "values of a factor (depth=6,18), or a fairseq-train option for all cells (lr=1e-3)"
    add("overrides", nargs="*", default=[], metavar="key=value", help=values)
    add("--dry-run", action="store_true", help="only print the plan")
    add("--only", metavar="GLOBS", help="run only the cells whose names match, as in '*_18l *_50l'")
    add("--runs", type=Path, help="folder for the cells (runs/SWEEP)")
    add("--data", type=Path, help="data folder of all cells (the config's)")
    add("--config", help="config of all cells (the sweep's)")
    add("--gpus", default="all", help="total number of GPUs; 0 uses the CPU (all visible)")
    add("--parallel", type=int, default=1, help="number of cells to run at once (1)")
    seeds = "seeds with which every cell runs, as in 1,2,3 (1)"
    add("--seeds", type=lambda text: list(map(int, text.split(","))), default="1", help=seeds)


def run(args: argparse.Namespace) -> int:
    """Run the cells that have no result and print the tables; return 1 if a cell failed."""
    sweep = grid.load_sweep(args.sweep)
    cells = choose_cells(args, sweep)
    folder = args.runs or ROOT / "runs" / Path(sweep.name).stem
    refuse_changes(folder, cells)
    plan = plan_text(f"{sweep.title}: {shown(folder)}", cells, folder)
    if args.dry_run:
        print(plan, end="")
        return 0
    for config in (cell.resolve() for cell in cells):
        configs.check_data(config.data or ROOT, config)
    shares = divide(args.gpus, args.parallel, visible_gpus(), all_cores())
    from fairseq_deepnet.experiments import report  # fails before any training if pandas is missing

    say(plan)
    train(sweep, cells, folder, shares)
    frame = results.table_of(results.read_runs([folder]))
    write_text(folder / results.FILE, frame.to_csv(index=False))
    tables_of_sweep = report.make(frame)
    print("\n".join(table.markdown() for table in tables_of_sweep), end="")
    report.save(tables_of_sweep, folder)
    failed = [cell.name for cell in cells if status_of(folder / cell.name) is Status.FAILED]
    if failed:
        say(f"failed: {', '.join(failed)}; see result.json of each; the same command resumes them")
    return 1 if failed else 0


def choose_cells(args: argparse.Namespace, sweep: grid.Sweep) -> list[Cell]:
    """Return the cells that the command line selects."""
    data = {} if args.data is None else {"recipe.data": shown(args.data)}
    changed = grid.override(sweep, args.overrides, data)
    for panel in changed.panels.values():
        panel["config"] = args.config or panel["config"]
    cells = grid.choose(grid.expand(changed, args.seeds), args.only)
    grid.check(changed, cells, args.overrides)
    return cells


def status_of(folder: Path) -> Status:
    """Return a cell's state; a started cell without a result is unfinished."""
    begun = Status.UNFINISHED if (folder / CELL).is_file() else Status.TO_DO
    return Status(read_json(folder / RESULT).get("status", begun))


def plan_text(title: str, cells: Sequence[Cell], folder: Path) -> str:
    """Return a table of all cells with their states and the options that the sweep sets."""
    rows = [["cell", "state", "options"]]
    for cell in cells:
        options = ", ".join(f"{key} {value}" for key, value in (cell.options | cell.train).items())
        rows.append([cell.name, status_of(folder / cell.name).value, options])
    names = ", ".join(dict.fromkeys(cell.config for cell in cells))
    counts = [f"{sum(row[1] == s for row in rows)} {s.value}" for s in Status]
    return f"{title}\n\n{tables.text(rows, 3)}\n\nconfig {names}; {', '.join(counts)}\n"


def refuse_changes(folder: Path, cells: Sequence[Cell]) -> None:
    """Raise ValueError if the settings of a cell have changed since it or another seed was trained.

    Otherwise, the tables would contain the mean of different systems.
    """
    for cell, file in itertools.product(cells, sorted(folder.glob(f"*/{CELL}"))):
        place, after = file.parent, cell.settings()
        if _without_seed(place.name) != _without_seed(cell.name):
            continue
        before = read_json(file).get("settings", after) | {"seed": after["seed"]}
        if before == after:
            continue
        run = results.read_run(place)
        has_result = run.status in (Status.DONE, Status.DIVERGED)
        if has_result or run.updates > 0 or any(place.glob("checkpoints/*.pt")):
            changes = [
                f"{key} {before.get(key)} -> {after.get(key)}"
                for key in sorted(before.keys() | after.keys())
                if before.get(key) != after.get(key)
            ]
            raise ValueError(
                f"{shown(place)} was run with other settings ({'; '.join(changes)}): choose another"
                " folder with RUNS=FOLDER (--runs), or remove the cell's folder"
            )


def _without_seed(name: str) -> str:
    return re.sub(r"\.seed\d+$", "", name)


@dataclasses.dataclass(frozen=True)
class Share:
    """Arguments of `deepnet train` and `deepnet evaluate` for a share of the GPUs or cores."""

    train: list[str]
    score: list[str]
    gpus: str | None = None


def divide(gpus: str, parallel: int, visible: list[str], cores: int) -> list[Share]:
    """Return a share of the machine for each parallel cell.

    Args:
        gpus: total number of GPUs, or "all"; "0" selects the CPU
        visible: the machine's GPUs, as CUDA_VISIBLE_DEVICES names them

    Raises:
        ValueError: if there are more parallel cells than GPUs.
    """
    count = choose_devices(gpus, 1, 1, len(visible)).gpus
    if not 1 <= parallel <= (count or parallel):
        raise ValueError(
            f"--parallel {parallel}: choose from 1 to {count or 'the number of cores'}"
        )
    if not count:
        cpus = str(threads_of(parallel, cores))
        on_cpu = Share(["--gpus", "0", "--threads", cpus], ["--gpus", "0", "--processes", cpus])
        return [on_cpu] * parallel
    number = count // parallel
    words = ["--gpus", str(number)]
    slots = (visible[slot * number : (slot + 1) * number] for slot in range(parallel))
    return [Share(words, words, ",".join(names)) for names in slots]


# The parent process, which starts the cells' processes and waits for them.


def train(
    sweep: grid.Sweep,
    cells: Sequence[Cell],
    folder: Path,
    shares: Sequence[Share],
    watch: Callable[[], None] = lambda: None,
) -> None:
    """Run the cells that lack a result or the requested score, one at a time on each share.

    Ctrl-C, SIGTERM and SIGHUP stop running cells and leave them unfinished. `watch` is called
    periodically.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w", encoding="utf-8") as lock:
        if not try_lock(lock):
            raise ValueError(f"another sweep is running in {shown(folder)}; wait, or set --runs")
        os.set_inheritable(lock.fileno(), True)
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(name) is not signal.SIG_IGN:  # nohup and & set this
                signal.signal(name, signal.default_int_handler)
        waiting = []
        for number, cell in enumerate(cells):
            place = folder / cell.name
            status, scored = status_of(place), read_json(place / RESULT).get("scored")
            is_done = status is Status.DONE and cell.score in (None, scored)
            if not is_done and status is not Status.DIVERGED:
                waiting.append((number, cell))
            else:  # the sweep may have new panels with this cell
                places = {"number": number, "places": cell.places}
                write_json(place / CELL, read_json(place / CELL) | places)
        working: dict[subprocess.Popen[bytes], tuple[str, Path, Share, float]] = {}
        free, total = list(shares), len(waiting)
        try:
            while waiting or working:
                while waiting and free:
                    number, cell = waiting.pop(0)
                    label = f"[{total - len(waiting)}/{total}] {cell.name}"
                    share, place = free.pop(), folder / cell.name
                    process = _start(sweep, cell, number, place, share)
                    say(f"{label}: running, see {shown(place / CONSOLE)}")
                    working[process] = label, place, share, time.monotonic()
                time.sleep(0.2)
                watch()
                for process in [candidate for candidate in working if candidate.poll() is not None]:
                    label, place, share, began = working.pop(process)
                    free.append(share)
                    code, seconds = process.returncode, time.monotonic() - began
                    if not (place / RESULT).is_file() and code not in _STOPPED:
                        reason = f"its process ended with status {code}"
                        write_json(place / RESULT, {"status": Status.FAILED, "reason": reason})
                    reason = read_json(place / RESULT).get("reason", "stopped")
                    say(f"{label}: {reason} ({seconds / 60:.1f} min)")
        except BaseException:
            say(f"stopping {len(working)} running cells")
            stop(list(working))
            say("stopped; the same command resumes from the latest checkpoints")
            raise


def _start(
    sweep: grid.Sweep, cell: Cell, number: int, place: Path, share: Share
) -> subprocess.Popen[bytes]:
    place.mkdir(parents=True, exist_ok=True)
    (place / RESULT).unlink(missing_ok=True)
    write_text(place / "cell.yaml", cell.resolve().to_yaml())
    record = {
        "sweep": sweep.name,
        "title": sweep.title,
        "number": number,
        "places": cell.places,
        "settings": cell.settings(),
        "train": [*share.train, *cell.train_words],
        "score": cell.score,
        "score_share": share.score,
    }
    write_json(place / CELL, record)
    environment = dict(os.environ)
    if share.gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = share.gpus
    with (place / CONSOLE).open("ab") as console:
        return subprocess.Popen(
            [*PROCESS, str(place.resolve())],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=ROOT,
            close_fds=False,  # the sweep stays locked until its last cell exits
            start_new_session=True,
            preexec_fn=end_with_parent,  # even if the sweep is killed
        )


def stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Stop cells and their child processes, and kill those that do not exit in time.

    A stopped cell saves a checkpoint before it exits. A second Ctrl-C kills all cells immediately.
    """
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    limit = time.monotonic() + PATIENCE
    with contextlib.suppress(KeyboardInterrupt):
        while time.monotonic() < limit and any(process.poll() is None for process in processes):
            time.sleep(0.1)
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# A cell's process.


def run_cell(folder: Path) -> int:
    """Train and score a cell; return 0 if a result was written, otherwise the exit status."""
    from fairseq_deepnet.tools.evaluation import evaluate

    cell, score = read_json(folder / CELL), None
    words = [str(folder / "cell.yaml"), "--run", str(folder), *cell["train"]]
    status, stage = call(training, words), "training"
    os.environ["OMP_NUM_THREADS"] = "1"  # set by training; each process scores with one thread
    if not status and cell["score"] is not None:
        stage, words = "scoring", [str(folder), *cell["score_share"], *cell["score"]]
        status, result = attempt(evaluate.score, evaluate, words)
        if result is not None:
            score = read_score(folder, str(result[0].relative_to(folder.resolve())))
    if status in _STOPPED:
        return status
    run = results.read_run(folder)
    run.unigram = results.unigram_level(run.config)
    diverged = run.why_diverged(bool(status) and stage == "training")
    if diverged is not None:
        outcome, reason = Status.DIVERGED, f"diverged: {diverged}"
    elif status:
        console = folder / CONSOLE
        log = console.read_text(encoding="utf-8", errors="replace") if console.is_file() else ""
        last = log.rstrip().rpartition("\n")[2]
        outcome, reason = Status.FAILED, f"{stage} ended with status {status}: {last}"
    elif score is not None:
        outcome, reason = Status.DONE, f"BLEU {score.headline:.2f}"
    else:
        loss = f", validation nll {run.valid_nll[-1][1]:.3f}" if run.valid_nll else ""
        outcome, reason = Status.DONE, f"trained{loss}"
    record = {
        "status": outcome.value,
        "reason": reason,
        "updates": run.updates,
        "unigram_nll": run.unigram,
        "score": score and score.file,
        "scored": cell["score"],
    }
    write_json(folder / RESULT, record)
    return 0


def call(module: Any, words: list[str]) -> int:
    """Run a subcommand in this process; return its exit status."""
    status, code = attempt(module.run, module, words)
    return status or int(code)


def attempt(
    command: Callable[[argparse.Namespace], Any], module: Any, words: list[str]
) -> tuple[int, Any]:
    """Call a function with a subcommand's arguments; return the exit status and the result."""
    try:
        return 0, command(grid.parse(module, words))
    except (ValueError, OSError) as error:
        say(f"error: {error}")
        return 2, None
    except KeyboardInterrupt:
        return INTERRUPTED, None


if __name__ == "__main__":
    sys.exit(run_cell(Path(sys.argv[1])))
