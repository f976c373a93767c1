"""The sample corpus, made by a seeded grammar of German and English, and `deepnet sample`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fairseq_deepnet.tools.corpora.sample.corpus import SPLITS, generate, write

DEFAULT_SIZES = {"train": 25_000, "valid": 500, "test": 500}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `deepnet sample`."""
    parser.add_argument(
        "--out", type=Path, required=True, help="a new folder for SPLIT.de and SPLIT.en"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="another seed, other sentences (default: 1)"
    )
    for split in SPLITS:
        size = DEFAULT_SIZES[split]
        parser.add_argument(
            f"--{split}", type=int, default=size, metavar="N", help=f"sentences (default: {size})"
        )


def run(args: argparse.Namespace) -> int:
    """Generate the corpus and write it."""
    sizes = {split: getattr(args, split) for split in SPLITS}
    write(generate(args.seed, sizes), args.out)
    lines = ", ".join(f"{split} {size}" for split, size in sizes.items())
    print(f"{args.out}: {lines} sentence pairs, seed {args.seed}", file=sys.stderr)
    return 0
