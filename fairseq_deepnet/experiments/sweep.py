"""`deepnet sweep`: all runs of a table of the paper's or one's own, trained, scored and tabulated.

A cell is one ordinary run folder, runs/SWEEP/CELL, trained by scripts/train.sh and scored by
scripts/eval_bleu.sh. A cell with a result (done, diverged or failed) is not run again; a sweep that
was stopped goes on inside the cell it was in. Definitions are in configs/sweeps/.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from fairseq_deepnet.experiments import cells, costs, definition, report, runner, state
from fairseq_deepnet.experiments.cells import Cell
from fairseq_deepnet.experiments.definition import Sweep
from fairseq_deepnet.experiments.runs import Status
from fairseq_deepnet.files import ROOT, inside_project, say, shown
from fairseq_deepnet.tools.devices import all_cores, visible_gpus

RETRIES: Final = {
    "failed": (Status.FAILED,),
    "diverged": (Status.DIVERGED,),
    "all": (Status.FAILED, Status.DIVERGED),
}
SHORT_OUTPUT: Final = ("--max-len-b", "5")
"""Options of fairseq-generate in a rehearsal: an untrained model would write 200 words a line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet sweep`."""
    add = parser.add_argument
    add("sweep", help="a name in configs/sweeps/ (table1, compare_methods, ...) or a file")
    values = "values of a factor (depth=6,18), or a fairseq-train option of all cells (lr=1e-3)"
    add("overrides", nargs="*", metavar="key=value", help=values)
    add("--dry-run", action="store_true", help="print the plan and end")
    add("--only", metavar="GLOB", help="only cells with such names: '*_18l *_50l'")
    add("--runs", type=Path, help="folder of the cells (runs/SWEEP)")
    add("--data", type=Path, help="data folder of all cells (the config's)")
    add("--config", help="config of all cells (the sweep's)")
    add("--gpus", default="all", help="GPUs to use in all; 0 is the CPU (all visible)")
    add("--parallel", type=int, default=1, help="cells at once (1)")
    add("--threads", type=int, help="of each cell on the CPU (cores / cells at once)")
    add("--seeds", default="1", help="seeds, each a run of every cell: 1,2,3 (1)")
    retry = "run failed cells again (failed)"
    add("--retry", nargs="?", const="failed", choices=tuple(RETRIES), help=retry)
    rehearsal = "a rehearsal in RUNS.tiny: 2 updates, 16 wide, shallow"
    add("--tiny", action="store_true", help=rehearsal)
    add("--teraflops", type=float, help="peak of one device, for the hours (a GPU: 312)")
    add("--memory", type=float, help="memory of one device in GiB (as found)")


def _cells(args: argparse.Namespace, sweep: Sweep) -> list[Cell]:
    if args.config is not None:
        sweep = sweep.with_config(args.config)
    data = {} if args.data is None else {"recipe.data": shown(args.data)}
    sweep = cells.override(sweep, args.overrides, args.tiny, data)
    seeds = [word.strip() for word in args.seeds.split(",")]
    if not all(word.isdecimal() for word in seeds) or len(set(seeds)) != len(seeds):
        raise ValueError(f"--seeds {args.seeds}: different numbers are expected, such as 1,2,3")
    chosen = cells.choose(cells.expand(sweep, list(map(int, seeds))), args.only)
    cells.refuse_lost(sweep, args.overrides, chosen)
    return chosen


def run(args: argparse.Namespace) -> int:
    """Plan; then run what has no result yet, and print the table. Status 1 if a cell failed."""
    sweep = definition.load_sweep(args.sweep)
    chosen = _cells(args, sweep)
    folder = args.runs or ROOT / "runs" / sweep.name
    if args.tiny:  # beside the real runs, never among them
        folder = folder.parent / f"{folder.name}.tiny"
    visible = visible_gpus()
    if args.dry_run and args.gpus.isdecimal():
        visible = [str(number) for number in range(int(args.gpus))]  # a plan for another machine
    shares = costs.shares(args.gpus, args.parallel, visible, all_cores(), args.threads)
    state.refuse_changes(folder, chosen)
    machine = costs.machine_of(int(shares[0]["GPUS"]), args.memory, args.teraflops)
    planned = [costs.cost_of(cell, folder, machine) for cell in chosen]
    text = costs.plan_text(f"{sweep.title}: {shown(folder)}", planned, machine)
    missing = _missing_data(chosen)
    if args.dry_run:
        print(text, end="")
        for line in missing:
            say(f"note: {line}")
        return 0
    if missing:
        raise FileNotFoundError(missing[0])
    say(text)
    with state.locked(folder):
        _start(args, chosen, folder, shares)
    made = report.make([folder])
    print("\n".join(made.text), end="")
    report.save(made, folder / "report.md", folder / "report.csv", folder)
    failed = [c.name for c in chosen if state.status_of(folder / c.name) is Status.FAILED]
    if failed:
        names = ", ".join(failed)
        say(f"failed: {names}; see sweep.json in their folders; --retry runs them again")
    return 1 if failed else 0


def _missing_data(chosen: Sequence[Cell]) -> list[str]:
    """Return a line for each data folder that is not there, with the script that makes it."""
    from fairseq_deepnet.tools.training.planned_run import check_data  # loads torch and fairseq

    found: dict[str, None] = {}
    for recipe in (cell.resolve().recipe for cell in chosen):
        try:
            check_data(inside_project(str(recipe.get("data", ""))), recipe)
        except FileNotFoundError as error:
            found[str(error)] = None
    return list(found)


def _start(
    args: argparse.Namespace, chosen: list[Cell], folder: Path, shares: list[dict[str, str]]
) -> None:
    """Run the cells that have no result, or whose result is to be tried again."""
    for cell in chosen:
        changed = state.judge_again(folder / cell.name, cell)
        if changed is not None:
            say(changed)
        state.prune(folder / cell.name, cell)
    to_run = []
    for cell in chosen:
        status = state.status_of(folder / cell.name)
        again = status in RETRIES.get(args.retry, ())
        if again:
            state.begin_again(folder / cell.name)
        lacks_score = state.lacks_score(folder / cell.name, cell)
        if lacks_score:
            say(f"{cell.name}: trained without a score, which is made now")
        if lacks_score or not status.is_result or again:
            to_run.append(cell)
    if not to_run:
        say("every cell has its result: nothing to do (--retry runs failed ones again)")
        return
    file = shown(definition.find_sweep(args.sweep))
    scripts = runner.Scripts(score_options=SHORT_OUTPUT if args.tiny else ())
    with _stopped_by_any_signal():
        runner.Runner(folder, shares, say, file, scripts).run(to_run)


@contextlib.contextmanager
def _stopped_by_any_signal() -> Iterator[None]:
    """Let any signal that ends a program stop the cells as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # SIGINT too: a sweep that was started in the background would ignore it
    before = {
        number: signal.signal(number, interrupt)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
