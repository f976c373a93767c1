"""`deepnet plot RUN...`: plot runs as an image, write their numbers, or a page with everything."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from fairseq_deepnet.files import say, write_text
from fairseq_deepnet.tools.plotting import images
from fairseq_deepnet.tools.plotting.runs import Run, read_runs
from fairseq_deepnet.tools.plotting.series import SHOWN, check, is_by_layer
from fairseq_deepnet.tools.tables import comma_separated

COLUMNS: Final = ("run", "quantity", "of", "part", "layer", "update", "value")
"""`of` is train or valid for logged columns, and a side or empty for measured ones; layers are
counted from the input of their stack."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `deepnet plot`."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="run folder (or its log)")
    out = "image (.png, .pdf, .svg), its numbers (.csv), or a page of everything (.html)"
    add("--out", type=Path, required=True, help=out)
    choices = (*SHOWN, images.EVERYTHING)
    show = f"content of an image or .csv: loss (default) or one of {', '.join(choices[1:])}"
    add("--show", choices=choices, metavar="WHAT", help=show)
    part = "part of a layer: self_attn, ffn, ... (default: layer, otherwise ffn; in a .csv all)"
    add("--part", help=part)
    add("--title", default="", help="a title above the figure or the page")


def run(args: argparse.Namespace) -> int:
    """Read the runs and draw."""
    kind, show = args.out.suffix, args.show or "loss"
    if kind not in (".png", ".pdf", ".svg", ".csv", ".html"):
        raise ValueError(f"--out {args.out}: the name must end in .png, .pdf, .svg, .csv or .html")
    if kind == ".html" and (args.show or args.part):
        raise ValueError("--show and --part are for images: a page holds everything")
    if args.part is not None and not is_by_layer(show):
        raise ValueError(f"--part {args.part}: --show {show} has no parts; leave it out")
    runs = read_runs(args.runs)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    if kind == ".html":
        from fairseq_deepnet.tools.plotting.page import make  # plotly takes half a second to load

        write_text(args.out, make(runs, args.title))
    elif kind == ".csv":
        if show != images.EVERYTHING:
            check(runs, show, args.part)
        write_text(args.out, comma_separated([COLUMNS, *_rows(runs, show, args.part)]))
    else:
        images.save(images.draw(runs, show, args.part, args.title), args.out)
    say(f"{args.out}: {len(runs)} run{'s' if len(runs) > 1 else ''}")
    return 0


def _rows(runs: Sequence[Run], show: str, part: str | None) -> Iterator[tuple[object, ...]]:
    """Yield the numbers of a quantity, or of everything, one per line."""
    for run in runs:
        for metric, curves in run.metrics.items():
            if show in (metric, images.EVERYTHING):
                for what, points in (("train", curves.train), ("valid", curves.valid)):
                    yield from ((run.name, metric, what, None, None, *point) for point in points)
        for key, grid in run.grids.items():
            if show in (key.quantity, images.EVERYTHING) and part in (None, key.part):
                for place, layer in zip(*grid.given.nonzero(), strict=True):
                    number = layer + 1 if is_by_layer(key.quantity) else None
                    value = grid.values[place, layer].item()
                    yield run.name, *key, number, grid.updates[place].item(), value
