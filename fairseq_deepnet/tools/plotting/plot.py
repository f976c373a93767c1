"""`deepnet plot RUN...`: runs as an image, as numbers, or as one page that holds everything."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from fairseq_deepnet.files import say, write_text
from fairseq_deepnet.tools.plotting import images
from fairseq_deepnet.tools.plotting.curves import METRICS
from fairseq_deepnet.tools.plotting.numbers import csv_of
from fairseq_deepnet.tools.plotting.runs import read_runs
from fairseq_deepnet.tools.plotting.series import BOUNDED, check, has, is_by_layer
from fairseq_deepnet.tools.plotting.style import save

IMAGES: Final = (".png", ".pdf", ".svg")
PAGE: Final = ".html"
NUMBERS: Final = ".csv"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `deepnet plot`."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="run folder (or its log)")
    out = (
        "image to write (.png, .pdf, .svg), the same as numbers (.csv), or a page that holds"
        " everything (.html)"
    )
    add("--out", type=Path, required=True, help=out)
    show = (
        "what an image or .csv shows: loss (default), lr, gnorm, a quantity of --monitor, such as"
        f" gradient_norm, or all; one of {', '.join(images.SHOWN)}"
    )
    add("--show", choices=images.SHOWN, metavar="WHAT", help=show)
    part = (
        "part of a layer, of a quantity that has several: self_attn, ffn, ... (default: layer"
        " where it was measured, otherwise ffn; in a .csv all)"
    )
    add("--part", help=part)
    metric = "of --show loss: loss (label-smoothed, default) or nll_loss"
    add("--metric", choices=METRICS, help=metric)
    add("--title", default="", help="a title above the figure or the page")


def run(args: argparse.Namespace) -> int:
    """Read the runs and draw."""
    show = _what(args)
    runs = read_runs(args.runs)
    if args.out.suffix == PAGE:
        # plotly takes half a second to load
        from fairseq_deepnet.tools.plotting.page import write

        write(runs, args.out, args.title)
    elif args.out.suffix == NUMBERS:
        if show != images.EVERYTHING:
            check(runs, show, args.part)
        single = [show, *([BOUNDED[show]] if show in BOUNDED else [])]
        shown = images.SINGLE if show == images.EVERYTHING else single
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_text(args.out, csv_of(runs, shown, args.part))
    else:
        save(images.draw(runs, show, args.part, args.title), args.out)
    say(f"{args.out}: {len(runs)} run{'s' if len(runs) > 1 else ''}")
    lacking = [run.name for run in runs if show in images.SINGLE and not has(run, show)]
    if lacking and args.out.suffix == NUMBERS:
        say(f"no {show} in {', '.join(lacking)}")
    missing = [run.name for run in runs if not run.is_monitored]
    if missing and (args.out.suffix == PAGE or show == images.EVERYTHING):
        say(f"nothing was measured in {', '.join(missing)}: train with --monitor-interval N")
    return 0


def _what(args: argparse.Namespace) -> str:
    """Return what an image shows; ValueError for options that cannot be honoured."""
    known = (*IMAGES, NUMBERS, PAGE)
    if args.out.suffix not in known:
        raise ValueError(f"--out {args.out}: the name must end in one of {', '.join(known)}")
    show = args.show or args.metric or "loss"
    if args.out.suffix == PAGE:
        for name in ("show", "part", "metric"):
            if getattr(args, name) is not None:
                raise ValueError(f"--{name} is for images: a page holds everything; leave it out")
    if args.out.suffix == NUMBERS and args.title:
        raise ValueError(f"--title {args.title}: numbers have none; leave it out")
    if args.metric is not None and args.show not in (None, "loss", args.metric):
        raise ValueError(f"--metric {args.metric} is for --show loss, not for --show {show}")
    if args.part is not None and not is_by_layer(show):
        raise ValueError(f"--part {args.part}: --show {show} has no parts; leave it out")
    return args.metric or show
