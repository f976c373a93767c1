r"""On a GPU: are half precision's numbers right, how fast is training, and what bounds it.

    python benchmarks/gpu_check.py                            # everything, within 25 minutes
    python benchmarks/gpu_check.py --results gpu.json         # go on where a run was cut off
    python benchmarks/gpu_check.py --device cpu --layers 1 --width 64 --tokens 256 \
        --vocabulary 100 --precisions bf16 --rounds 2         # the same logic, anywhere

Correctness, 6L-6L without dropout: loss, logits and gradients of one padded batch in bf16 and fp16
against fp32 (and of fp32 against stock fairseq's), each by its distance over the size of what it
should be. Ours with --residual-scheme post-ln has the weights of the stock model, which shows what
the precision itself costs; ours may be at the most 1.5 times as far off. DeepNorm's has no such
yardstick in fairseq; its row is held to the same distances. All are means over four draws of
weights, with fixed seeds.

Training, 512/2048/8 and batches of 4,096 positions unless told otherwise: fairseq's stock
`transformer` against ours, plain and with --compile, as in training_speed.py: updates in turn where
the GPU's memory holds them all ("in turn"), one system after the other where it does not; then
"speed" is the ratio of medians. "kernels"
is the time of the GPU's kernels in an update, by torch's profiler, over the time of an update
without the profiler: near 100 % the GPU is what bounds it, far below it waits for Python.
"products" is the part of the kernels' time that multiplies matrices. On the CPU both are of torch's
operations, and "peak" is the resident set.

Sharded, the deepest of --layers in bf16 without dropout: the same training plain and with
--ddp-backend fully_sharded, which has nothing to split on one device. Its updates may take 5 % more
(judged on a GPU alone), and its losses differ by what bf16 rounds.

One Markdown table each. Every finished line is kept in --results, and a further run with the same
file measures what is missing. Exit status 1 where a number is off, 2 without a GPU.
"""

import argparse
import logging
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from gpu import correctness, sharded, training
from gpu.results import Results
from side_by_side import tables
from side_by_side.systems import Shape


def parse() -> argparse.Namespace:
    """The command line; ends where there is no GPU."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--layers", type=int, nargs="+", default=[18, 50, 100], help="a side")
    parser.add_argument("--width", type=int, default=512, help="(%(default)s)")
    parser.add_argument("--vocabulary", type=int, default=32000, help="(%(default)s)")
    parser.add_argument("--tokens", type=int, default=4096, help="of a batch (%(default)s)")
    types = correctness.TYPES
    parser.add_argument("--precisions", nargs="+", choices=types, default=["bf16", "fp16"])
    parser.add_argument("--rounds", type=int, default=15, help="updates of each (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU (%(default)s)")
    parser.add_argument(
        "--no-compile", dest="compile", action="store_false", help="nothing by torch.compile"
    )
    parser.add_argument("--minutes", type=float, default=25, help="begin nothing that ends later")
    parser.add_argument("--results", type=Path, metavar="FILE", help="finished lines")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "gpu_check: torch sees no CUDA device here; run it on a machine with a GPU, or try its"
            " logic with --device cpu (see --help)",
            file=sys.stderr,
        )
        raise SystemExit(2)
    if options.device == "cpu" and "fp16" in options.precisions:
        parser.error("--precisions fp16: fairseq's --fp16 needs a GPU; give --precisions bf16")
    options.precisions = [name for name in options.precisions if name != "fp32"]
    return options


def train(options: argparse.Namespace, results: Results, began: float) -> list[str]:
    """The rows of training from the shallowest shape to the deepest; what there was no time for."""
    longest, left = 0.0, []
    for layers in sorted(options.layers):
        for precision in options.precisions:
            key = f"{layers} {precision}"
            done = results.get(key)
            started = time.monotonic()
            if done is None and started - began + 1.5 * longest > 60 * options.minutes:
                left.append(key)
                continue
            if done is None:
                shape = Shape(layers, options.width, options.vocabulary, options.tokens, precision)
                done = training.measure(shape, options)
                results.put(key, done)
                longest = max(longest, time.monotonic() - started)
            print("\n".join(map(training.row, done)), flush=True)
    return left


def main() -> int:
    """Correctness, training, and the cost of sharding."""
    options, began = parse(), time.monotonic()
    logging.disable(logging.WARNING)  # fairseq describes each model at length
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    cuda = options.device == "cuda"
    device = torch.cuda.get_device_name() if cuda else tables.machine()
    about = {"device": device, "torch": torch.__version__}
    names = ("layers", "width", "vocabulary", "tokens", "precisions", "rounds", "compile")
    about |= {name: getattr(options, name) for name in names}
    results = Results(options.results, about)
    print(f"{device}, torch {torch.__version__}, CUDA {torch.version.cuda}\n")
    lines = results.get("correctness") or correctness.measure(options)
    results.put("correctness", lines)
    print("\n".join([*tables.head(correctness.HEAD, 4), *map(correctness.row, lines)]), flush=True)
    print("\n" + "\n".join(tables.head(training.HEAD, 3)), flush=True)
    left = train(options, results, began)
    if results.get("sharded") is None and time.monotonic() - began > 60 * options.minutes:
        left.append("sharded")
    else:
        line = results.get("sharded") or sharded.measure(options)
        results.put("sharded", line)
        lines = [*lines, line]
        print("\n" + "\n".join([*tables.head(sharded.HEAD, 2), sharded.row(line)]), flush=True)
    if left:
        print(f"\nleft for another run (--results): {', '.join(left)}")
    return 1 if left or any(line["right"] is False for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
