r"""Check half precision on a GPU, and measure the speed of training and its limits.

    python benchmarks/gpu_check.py --results gpu.json         # within 25 minutes; resumable
    python benchmarks/gpu_check.py --device cpu --layers 1 --width 64 --tokens 256 \
        --vocabulary 100 --precisions bf16 --rounds 2         # the same on a CPU

Correctness, 6L-6L without dropout: relative errors of the loss, logits and gradients for a padded
batch, in fp32 against stock fairseq, and in bf16 and fp16 against fp32. With post-ln, our model has
the stock model's weights, and its errors may be at most 1.5 times the stock model's. DeepNorm has
no reference in fairseq and gets the same limits. All errors are means over four seeds. A second
table has DeepNorm's errors at width 64 and 6, 18 and 100 layers per side: from 18 layers on,
gradients may be off by at most 0.01 with --residual-dtype float32.

Features, 6L-6L without dropout: losses of ten updates with the chunked loss, fused Adam, activation
checkpointing, varlen_attn (not on a CPU), --compile, sharding, offloading or a flat fp16 copy,
against the same run without the feature; and logits of incremental decoding against those of whole
sentences.

Commands, a tiny model on the sample text: fairseq-train with two processes on one device, and
stopped and resumed, against a plain run; and an error in one of two processes, after which both
must end.

Training, by default 512/2048/8 and batches of 4,096 positions: fairseq's stock `transformer`
against ours, also with varlen_attn and --compile. All systems are in memory and run updates in
turn. "kernels" is the share of an update in which the GPU's kernels run: near 100 %, the GPU is the
limit; far below, it waits for Python. "products" is the share of matrix products in the kernels'
time. On a CPU, both refer to torch's operations, and "peak" is the resident set.

Each part prints one Markdown table. --results stores finished parts and shapes, which a later run
with the same file skips. The exit status is 1 if a limit is exceeded, and 2 without a GPU.
"""

import argparse
import logging
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from gpu import commands, correctness, features, training
from gpu.results import Results
from side_by_side import tables
from side_by_side.systems import Shape

CHECKS: dict[str, tuple[Any, int, Any]] = {
    "correctness": (correctness, 4, correctness.measure),
    "streams": (correctness, 4, correctness.measure_streams),
    "features": (features, 3, features.measure),
    "commands": (commands, 2, commands.measure),
}
"""Part -> its module, the number of text columns, and the function that returns its rows."""
PARTS = (*CHECKS, "training")


def parse() -> argparse.Namespace:
    """Parse the command line; exit if there is no GPU."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--layers", type=int, nargs="+", default=[18, 50, 100], help="per side")
    parser.add_argument("--width", type=int, default=512, help="(%(default)s)")
    parser.add_argument("--vocabulary", type=int, default=32000, help="(%(default)s)")
    parser.add_argument(
        "--tokens", type=int, default=4096, help="positions per batch (%(default)s)"
    )
    halves = ["bf16", "fp16"]
    parser.add_argument("--precisions", nargs="+", choices=halves, default=halves)
    parser.add_argument("--rounds", type=int, default=15, help="updates per system (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (%(default)s)")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--jobs", type=int, default=4, help="processes at once (%(default)s)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="(all)")
    parser.add_argument("--minutes", type=float, default=25, help="time limit")
    parser.add_argument("--results", type=Path, metavar="FILE", help="file of finished rows")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        need = "torch sees no CUDA device; use a machine with a GPU, or --device cpu (see --help)"
        print(f"gpu_check: {need}", file=sys.stderr)
        raise SystemExit(2)
    if options.device == "cpu" and "fp16" in options.precisions:
        parser.error("--precisions fp16: fairseq's --fp16 needs a GPU; give --precisions bf16")
    return options


def train(options: argparse.Namespace, results: Results, start: float) -> list[str]:
    """Print the rows of training, from the shallowest shape to the deepest; return what is left."""
    longest, remaining = 0.0, []
    for layers in sorted(options.layers):
        for precision in options.precisions:
            key = f"{layers} {precision}"
            rows = results.get(key)
            now = time.monotonic()
            if rows is None and now - start + 1.5 * longest > 60 * options.minutes:
                remaining.append(key)
                continue
            if rows is None:
                shape = Shape(layers, options.width, options.vocabulary, options.tokens, precision)
                rows = training.measure(shape, options)
                results.put(key, rows)
                longest = max(longest, time.monotonic() - now)
            print("\n".join(map(training.row, rows)), flush=True)
    return remaining


def main() -> int:
    """Check correctness and training speed."""
    options, start = parse(), time.monotonic()
    logging.disable(logging.WARNING)  # fairseq describes each model at length
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    cuda = options.device == "cuda"
    device = torch.cuda.get_device_name() if cuda else tables.machine()
    about = {"device": device, "torch": torch.__version__}
    names = ("layers", "width", "vocabulary", "tokens", "precisions", "rounds", "compile")
    about |= {name: getattr(options, name) for name in names}
    results = Results(options.results, about)
    print(f"{device}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    print(f"{tables.limits(options.device)}\n")
    right = True
    for part, (module, labels, measure) in CHECKS.items():
        if part in options.parts:
            rows = results.get(part) or measure(options)
            results.put(part, rows)
            right = right and not any(row["right"] is False for row in rows)
            head = tables.head(module.HEAD, labels)
            print("\n".join([*head, *map(module.row, rows), ""]), flush=True)
    if "training" not in options.parts:
        return int(not right)
    print("\n".join(tables.head(training.HEAD, 3)), flush=True)
    remaining = train(options, results, start)
    if remaining:
        print(f"\nnot measured yet; run again with --results: {', '.join(remaining)}")
    return int(bool(remaining) or not right)


if __name__ == "__main__":
    sys.exit(main())
