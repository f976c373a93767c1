r"""Compare training updates of ours, fairseq's stock `transformer` and torchscale's DeepNet.

    python benchmarks/training_speed.py --layers 18 --width 64          # one shape, a minute or two
    python benchmarks/training_speed.py --layers 6 18 50 100 500 --width 64 256 512 --threads 2
    python benchmarks/training_speed.py --layers 6 --width 512 --systems ours \
        --variant "bf16=--bf16"                                         # bf16 against fp32
    python benchmarks/training_speed.py --layers 18 --width 64 --systems stock,ours \
        --variant "adam=--optimizer adam" --variant "before@../old-checkout="

Each system trains through fairseq's own Trainer and iterators in its own process. In every round,
each runs one update on the same batch, in an order that rotates. A batch has at most --tokens
positions of generated sentences with the lengths of Multi30k.

    stock       --arch transformer, fairseq's adam and label_smoothed_cross_entropy; this process
                does not import the plugin
    ours        --arch deepnet_transformer with fused_adam and chunked_label_smoothed_cross_entropy
    torchscale  its EncoderDecoder with DeepNorm, fairseq's adam and criterion; pip installs it from
                PyPI into a temporary folder on first use (--systems stock,ours: without)

"speed" is the median over rounds of the base's time divided by the system's time in the same round;
the base is the first system. All systems must fit into memory together. side_by_side/parts.py
describes the phases, whose median shares are printed. "products" is the time of the update's matrix
products alone, in --precision and measured in the same round, divided by that of the update: the
limit is 100 %. Only attention's products include padding. The column is empty for a variant in
another precision. "peak" is the peak resident set of the process minus its size before the model
was built. The exit status is 1 if a system is missing.

--clock cpu reads the processor time of the process, which other programs disturb less than
    wall-clock time. With more than one thread it would be the sum over threads, so the wall clock
    is used.
"""

import argparse
import dataclasses
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from side_by_side import systems, tables
from side_by_side.race import race
from side_by_side.systems import PRECISIONS, Shape


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, nargs="+", default=[18], help="a side (18)")
    parser.add_argument("--width", type=int, nargs="+", default=[64], help="channels (64)")
    parser.add_argument("--ffn", type=int, default=0, help="2 x 64, 4 x any other width")
    parser.add_argument("--vocabulary", type=int, default=8000, help="(%(default)s)")
    parser.add_argument("--tokens", type=int, default=1024, help="of a batch (%(default)s)")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--threads", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="updates of each (%(default)s)")
    parser.add_argument("--clock", choices=("cpu", "wall"), help="cpu, with threads wall")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every number measured")
    systems.add_arguments(parser)
    options = parser.parse_args()
    for width in options.width:
        if width < 4 or width % max(2, width // 64):
            parser.error(f"--width {width}: heads of 64 channels must divide it")
    for name in ("layers", "vocabulary", "tokens", "threads", "rounds"):
        values = getattr(options, name)
        least = {"vocabulary": 8, "tokens": 256}.get(name, 1)
        if min(values if isinstance(values, list) else [values]) < least:
            parser.error(f"--{name} {values}: {least} at the least")
    options.clock = options.clock or ("cpu" if options.threads == 1 else "wall")
    return options


def main() -> int:
    """Run the rounds shape by shape, and print the table as it grows."""
    options = parse()
    entered = systems.chosen(options)
    print(
        f"{tables.machine()}, {options.threads} thread{'s' * (options.threads > 1)},"
        f" {options.precision}, vocabulary {options.vocabulary:,}, batches of"
        f" {options.tokens:,} positions, {options.rounds} rounds, {options.clock} time\n"
    )
    print("\n".join(tables.head(tables.HEAD, 2)), flush=True)
    notes, measured = [], []
    for layers in options.layers:
        for width in options.width:
            shape = Shape(
                layers, width, options.vocabulary, options.tokens, options.precision, options.ffn
            )
            start = time.perf_counter()
            found, more = race(entered, shape, options.rounds, options.clock, options.threads)
            print(f"{shape.name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
            if found:
                print(
                    "\n".join(tables.rows(shape, found, options.clock, entered[0].name)), flush=True
                )
            notes += [*filter(None, [tables.about_limits(shape, found)]), *more]
            measured.append({"shape": dataclasses.asdict(shape), "found": found, "notes": more})
    print("\n" + "\n".join(f"- {note}" for note in notes))
    if options.json is not None:
        from fairseq_deepnet.files import write_json
        from fairseq_deepnet.records import git_revision, versions

        settings = {name: str(value) for name, value in vars(options).items()}
        about = {"options": settings, "versions": versions(), "commit": git_revision()}
        write_json(options.json, {**about, "machine": tables.machine(), "measured": measured})
    return 0 if all(one["found"].keys() >= {s.name for s in entered} for one in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
