"""`deepnet plot RUN...`: runs as an image, or as one page that holds everything."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from fairseq_deepnet.tools.plotting import images
from fairseq_deepnet.tools.plotting.curves import METRICS
from fairseq_deepnet.tools.plotting.runs import Run, read_runs
from fairseq_deepnet.tools.plotting.series import is_by_layer
from fairseq_deepnet.tools.plotting.style import save

IMAGES: Final = (".png", ".pdf", ".svg")
PAGE: Final = ".html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `deepnet plot`."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder (or its log)")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="image to write (.png, .pdf, .svg), or a page that holds everything (.html)",
    )
    parser.add_argument(
        "--show",
        choices=images.SHOWN,
        metavar="WHAT",
        help="what an image shows: loss (default), lr, gnorm, a quantity of --monitor, such as"
        f" gradient_norm, or all; one of {', '.join(images.SHOWN)}",
    )
    parser.add_argument(
        "--part",
        help="part of a layer, in an image of a quantity that has several: self_attn, ffn, ..."
        " (default: layer where it was measured, otherwise ffn)",
    )
    parser.add_argument(
        "--metric",
        choices=METRICS,
        help="of --show loss: loss (label-smoothed, default) or nll_loss",
    )
    parser.add_argument("--title", default="", help="a title above the figure or the page")


def run(args: argparse.Namespace) -> int:
    """Read the runs and draw."""
    show = _what(args)
    runs = read_runs(args.runs)
    if args.out.suffix == PAGE:
        # plotly takes half a second to load
        from fairseq_deepnet.tools.plotting.page import write

        write(runs, args.out, args.title)
    else:
        save(images.draw(runs, show, args.part, args.title), args.out)
    print(f"{args.out}: {len(runs)} run{'s' if len(runs) > 1 else ''}", file=sys.stderr)
    _tell_unmonitored(runs, args.out.suffix == PAGE or show == images.EVERYTHING)
    return 0


def _what(args: argparse.Namespace) -> str:
    """What an image shows; ValueError for options that cannot be honoured."""
    if args.out.suffix not in (*IMAGES, PAGE):
        raise ValueError(f"--out {args.out}: the name must end in {', '.join(IMAGES)} or {PAGE}")
    show = args.show or args.metric or "loss"
    if args.out.suffix == PAGE:
        for name in ("show", "part", "metric"):
            if getattr(args, name) is not None:
                raise ValueError(f"--{name} is for images: a page holds everything; leave it out")
    if args.metric is not None and args.show not in (None, "loss", args.metric):
        raise ValueError(f"--metric {args.metric} is for --show loss, not for --show {show}")
    if args.part is not None and not is_by_layer(show):
        raise ValueError(f"--part {args.part}: --show {show} has no parts; leave it out")
    return args.metric or show


def _tell_unmonitored(runs: list[Run], matters: bool) -> None:
    missing = [run.name for run in runs if not run.is_monitored]
    if matters and missing:
        print(
            f"nothing was measured in {', '.join(missing)}: train with --monitor-interval N",
            file=sys.stderr,
        )
