r"""Compare training updates of ours, fairseq's stock `transformer` and torchscale's DeepNet.

    python benchmarks/training_speed.py --layers 18 --width 64          # one shape, a minute or two
    python benchmarks/training_speed.py --layers 6 18 50 100 500 --width 64 256 512 --threads 2
    python benchmarks/training_speed.py --layers 18 --width 64 --systems stock,ours \
        --variant "adam=--optimizer adam" --variant "before@../old-checkout="

Each system trains through fairseq's own Trainer and iterators in its own process. In every round,
each runs one update on the same batch, in an order that rotates. A batch has at most --tokens
positions of generated sentences with the lengths of Multi30k.

    stock       --arch transformer, fairseq's adam and label_smoothed_cross_entropy; this process
                does not import the plugin
    ours        --arch deepnet_transformer with fused_adam and chunked_label_smoothed_cross_entropy
    torchscale  its EncoderDecoder with DeepNorm, fairseq's adam and criterion; pip installs it on
                first use (--systems stock,ours: without)

Times are processor times with one thread, which other programs disturb little, and wall-clock times
with more threads. "speed" is the median over rounds of the first system's time divided by the
system's time in the same round. All systems must fit into memory together. "peak" is the peak
resident set of the process minus its size before the model was built. The exit status is 1 if a
system is missing.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from side_by_side import tables
from side_by_side.race import race
from side_by_side.systems import PRECISIONS, Shape, System, variant

HEAD = ["model", "system", "s / update", "quartiles", "tokens / s", "speed", "quartiles"]
HEAD += ["peak MiB"]


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, nargs="+", default=[18], help="per side (18)")
    parser.add_argument("--width", type=int, nargs="+", default=[64], help="channels (64)")
    parser.add_argument("--vocabulary", type=int, default=8000, help="(%(default)s)")
    parser.add_argument("--tokens", type=int, default=1024, help="per batch (%(default)s)")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--threads", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="updates of each (%(default)s)")
    entered = "stock,ours,torchscale"
    parser.add_argument("--systems", default=entered, help="(%(default)s)")
    variants = "ours with further options of fairseq-train, or of another checkout"
    parser.add_argument(
        "--variant",
        type=variant,
        action="append",
        default=[],
        metavar="NAME[@CHECKOUT]=OPTIONS",
        help=variants,
    )
    return parser.parse_args()


def rows(
    shape: Shape, answers_of: dict[str, list[dict[str, Any]]], clock: str, base: str
) -> list[str]:
    """Return a row per system; speeds are empty if the base did not run."""
    lines = []
    for name, answers in answers_of.items():
        seconds = [answer[clock] for answer in answers]
        rates = [answer["tokens"] / answer[clock] for answer in answers]
        speeds = tables.ratios(answers_of.get(base, []), answers, clock)
        cells = [shape.name, name, f"{statistics.median(seconds):.3f}"]
        cells += [tables.quartiles(seconds, 3), f"{statistics.median(rates):,.0f}"]
        cells += [f"{statistics.median(speeds):.2f}" if speeds else ""]
        cells += [tables.quartiles(speeds, 2)]
        cells += [f"{max(answer['peak'] for answer in answers) / 2**20:,.0f}"]
        lines.append(tables.line(cells))
    return lines


def main() -> int:
    """Run the rounds shape by shape, and print the table as it grows."""
    options = parse()
    entered = [System(name, name) for name in options.systems.split(",")] + options.variant
    clock = "cpu" if options.threads == 1 else "wall"
    print(
        f"{tables.machine()}, threads: {options.threads}, {options.precision}, vocabulary"
        f" {options.vocabulary:,}, batches of {options.tokens:,} positions, rounds:"
        f" {options.rounds}, {clock} time"
    )
    torch.set_num_threads(options.threads)
    print(f"{tables.limits()}\n")
    print("\n".join(tables.head(HEAD, 2)), flush=True)
    notes, is_complete = [], True
    for layers in options.layers:
        for width in options.width:
            shape = Shape(layers, width, options.vocabulary, options.tokens, options.precision)
            answers_of, failures = race(entered, shape, options.rounds, options.threads)
            if answers_of:
                print("\n".join(rows(shape, answers_of, clock, entered[0].name)), flush=True)
            is_complete &= len(answers_of) == len(entered)
            notes += failures
    print("\n" + "\n".join(f"- {note}" for note in notes))
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
