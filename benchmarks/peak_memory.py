r"""Peak memory of a training update: ours against fairseq's stock `transformer`, and what it costs.

    python benchmarks/peak_memory.py                          # the three cases below
    python benchmarks/peak_memory.py --cases vocabulary --profile
    python benchmarks/peak_memory.py --layers 18 --width 128 --tokens 2048 \
        --variant "checkpointed=--checkpoint-activations"     # a shape of your own

    vocabulary  6L-6L, width 256, 64,000 words, batches of 4,096 positions
    depth       50L-50L, width 256, 8,000 words, batches of 4,096 positions; ours with
                --checkpoint-activations-every auto, stock as it is
    budgets     the same model, batches of 1,024 positions: ours as it is, with less and less
                --checkpoint-memory, and with --checkpoint-activations-every auto

Each system makes two updates of the fullest of 40 batches in a process of its own. "peak" is the
most that was resident less what was before the model was built; malloc is told to give freed blocks
back at once, as benchmarks/plan_accuracy.py explains, so that it shows what is alive and not what
is hoarded. --profile adds the most bytes of tensors alive, from torch's profiler. "of base" are
fractions of the first system's.

"time" comes from other processes, with malloc's own ways, by rounds side by side as in
training_speed.py: the median over rounds of the system's time over the base's (--rounds 0: none).
"""

import argparse
import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from plan_accuracy import FIXED_MALLOC, GIB
from side_by_side import systems, tables
from side_by_side.memory import available_gib
from side_by_side.race import LIMITS, WorkerError, race, start
from side_by_side.systems import Shape, System, estimated_gib

STOCK, OURS = System("stock", "stock"), System("ours", "ours")
CHECKPOINTED = System("ours, checkpointed", "ours", ("--checkpoint-activations-every=auto",))
CASES = {
    "vocabulary": (Shape(6, 256, 64000, 4096), [STOCK, OURS]),
    "depth": (
        Shape(50, 256, 8000, 4096),
        [STOCK, CHECKPOINTED],
    ),
    "budgets": (
        Shape(50, 256, 8000, 1024),
        [
            OURS,
            *(System(f"{gib} GiB", "ours", (f"--checkpoint-memory={gib}",)) for gib in (3, 2.6)),
            CHECKPOINTED,
        ],
    ),
}
HEAD = ["model", "words", "system", "peak MiB", "of base", "alive MiB", "of base", "time of base"]


def memory(system: System, shape: Shape, options: argparse.Namespace) -> dict[str, float]:
    """Peaks in bytes of a system's fullest update; WorkerError where its process ends."""
    process = start(system, shape, "wall", options.threads, 0, FIXED_MALLOC)
    try:
        return process.ask("fill", profile=options.profile)
    finally:
        process.end()


def times(found: dict[str, list[dict[str, float]]], base: str, clock: str) -> dict[str, str]:
    """Each system's time over that of the base, where both have run."""
    if base not in found:
        return {}
    return {
        name: f"{tables.speed(answers, found[base], clock):.2f}"
        for name, answers in found.items()
        if name != LIMITS
    }


def rows(
    shape: Shape, entered: list[System], options: argparse.Namespace
) -> tuple[list[str], list[str]]:
    """The lines of a shape, and what did not run."""
    peaks: dict[str, dict[str, float]] = {}
    notes = []
    for system in entered:
        needed, room = estimated_gib(system, shape), available_gib()
        if needed > room:
            notes.append(f"{shape.name}: {system.name}: {needed:.0f} GiB, {room:.0f} are free")
            continue
        try:
            peaks[system.name] = memory(system, shape, options)
        except WorkerError as failure:
            notes.append(f"{shape.name}: {system.name}: {failure}")
    taken: dict[str, str] = {}
    if options.rounds and peaks:
        running = [system for system in entered if system.name in peaks]
        found, more = race(running, shape, options.rounds, options.clock, options.threads)
        taken, notes = times(found, entered[0].name, options.clock), [*notes, *more]
    lines = []
    base = peaks.get(entered[0].name, {})
    for name, peak in peaks.items():
        cells = [shape.name, f"{shape.vocabulary:,}", name]
        for key in ("peak", "alive"):
            there = key in peak
            cells.append(f"{peak[key] * 1024 / GIB:,.0f}" if there else "")
            cells.append(f"{peak[key] / base[key]:.2f}" if there and key in base else "")
        lines.append(tables.line([*cells, taken.get(name, "")]))
    return lines, notes


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--layers", type=int, help="a side, instead of --cases: your own")
    parser.add_argument("--width", type=int, default=256, help="of it (%(default)s)")
    parser.add_argument("--vocabulary", type=int, default=8000, help="of it (%(default)s)")
    parser.add_argument("--tokens", type=int, help="of a batch (4096)")
    parser.add_argument("--rounds", type=int, default=5, help="for the time (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--profile", action="store_true", help="also count bytes alive")
    systems.add_arguments(parser)
    parser.set_defaults(systems="stock,ours")
    options = parser.parse_args()
    options.clock = "cpu" if options.threads == 1 else "wall"
    return options


def main() -> int:
    """Measure case by case, printing the table as it grows."""
    options = parse()
    cases = [CASES[name] for name in options.cases]
    if options.layers is not None:
        shape = Shape(options.layers, options.width, options.vocabulary, 4096)
        cases = [(shape, systems.chosen(options))]
    print(f"{tables.machine()}, {options.threads} thread(s), fp32\n")
    print("\n".join(tables.head(HEAD, 3)), flush=True)
    notes: list[str] = []
    for shape, entered in cases:
        shape = dataclasses.replace(shape, tokens=options.tokens or shape.tokens)
        lines, failed = rows(shape, entered, options)
        print("\n".join(lines), flush=True)
        notes += failed
    print("".join(f"\n- {note}" for note in notes))
    return 1 if notes else 0


if __name__ == "__main__":
    sys.exit(main())
