"""Start-up, and checkpoints: ours against fairseq's stock `transformer`, by depth.

    python benchmarks/startup.py                                  # 18, 100 and 500 layers a side
    python benchmarks/startup.py --layers 18 --width 512 --rounds 5

Every measurement is a process of its own, and the systems take turns. Columns, medians of seconds:

    import  from the start of the process until the libraries (and our plugin) are there
    build   dictionary, model with its initial weights, criterion, trainer
    save    Trainer.save_checkpoint after one update: weights and the optimiser's state
    load    Trainer.load_checkpoint into a trainer that was just built

Processor time, as other programs disturb it less; --clock wall for the clock on the wall. The file
is written to a temporary folder (--folder). fairseq's own loader refuses every checkpoint under
torch 2.6 and later; for the stock system its classes are allow-listed here as the plugin does it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]

COLUMNS = ("import", "build", "save", "load")
KINDS = ("stock", "ours")


def measure(kind: str, layers: int, options: argparse.Namespace) -> dict[str, float]:
    """Seconds of each column and the size of the file, in this process."""
    import logging
    import warnings

    from side_by_side.systems import Shape, System
    from side_by_side.worker import batches, build, load

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    wall = options.clock == "wall"
    clock = time.time if wall else time.process_time
    start = options.started if wall else 0.0  # of the process, interpreter included
    found: dict[str, float] = {}

    def lap(name: str) -> None:
        nonlocal start
        found[name] = clock() - start
        start = clock()

    system, shape = System(kind, kind), Shape(layers, options.width, options.vocabulary, 256)
    load(system)
    lap("import")
    trainer = build(system, shape)
    lap("build")
    if kind == "stock":
        import torch

        torch.serialization.add_safe_globals([argparse.Namespace])
    trainer.train_step(next(batches(trainer)))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = str(Path(folder) / "checkpoint.pt")
        start = clock()
        trainer.consolidate_optimizer()  # as fairseq-train does
        trainer.save_checkpoint(path, {})
        lap("save")
        trainer = build(system, shape)
        start = clock()
        trainer.load_checkpoint(path)
        lap("load")
        found["bytes"] = Path(path).stat().st_size
    found["parameters"] = sum(p.numel() for p in trainer.get_model().parameters())
    return found


def in_own_process(kind: str, layers: int, options: argparse.Namespace) -> dict[str, float]:
    """The same, in a process that starts now."""
    command = [sys.executable, __file__, "--one", kind, "--layers", str(layers)]
    command += ["--width", str(options.width), "--vocabulary", str(options.vocabulary)]
    command += ["--clock", options.clock, "--started", str(time.time())]
    command += ["--folder", str(options.folder)] if options.folder else []
    done = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8")
    if done.returncode:
        raise SystemExit(f"{kind}, {layers} layers: ended with status {done.returncode}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def row(layers: int, kind: str, found: list[dict[str, float]]) -> str:
    """A line of the table."""
    cells: list[Any] = [f"{layers}L-{layers}L", kind, f"{found[0]['parameters']:,}"]
    cells += [f"{statistics.median(one[column] for one in found):.2f}" for column in COLUMNS]
    cells.append(f"{found[0]['bytes'] / 2**20:,.0f}")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, nargs="+", default=[18, 100, 500], help="a side")
    parser.add_argument("--width", type=int, default=64, help="channels (%(default)s)")
    parser.add_argument("--vocabulary", type=int, default=8000, help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of each (%(default)s)")
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    parser.add_argument("--folder", type=Path, help="for the checkpoints")
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.layers[0], options)))
        return
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: 1 at the least")
    head = ["model", "system", "parameters", *(f"{name} s" for name in COLUMNS), "file MiB"]
    print("| " + " | ".join(head) + " |\n|---|---|" + "---:|" * (len(head) - 2), flush=True)
    for layers in options.layers:
        found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
        for _ in range(options.rounds):
            for kind in KINDS:
                found[kind].append(in_own_process(kind, layers, options))
        for kind in KINDS:
            print(row(layers, kind, found[kind]), flush=True)


if __name__ == "__main__":
    main()
