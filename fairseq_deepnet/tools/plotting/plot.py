"""`deepnet plot RUN...`: plot a quantity of runs as an image, or all quantities as a page."""

import argparse
from pathlib import Path

from fairseq_deepnet.files import say, write_text
from fairseq_deepnet.tools.plotting import images
from fairseq_deepnet.tools.plotting.runs import SHOWN, read_runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet plot`."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="run folder")
    out = "image (.png, .pdf, .svg), or a page with all plots (.html)"
    add("--out", type=Path, required=True, help=out)
    show = f"content of an image: loss (default) or one of {', '.join(SHOWN[1:])}"
    add("--show", choices=SHOWN, metavar="WHAT", help=show)
    add("--title", default="", help="title above the figure or the page")


def run(args: argparse.Namespace) -> int:
    """Read the runs, and write an image or a page."""
    kind = args.out.suffix
    if kind not in (".png", ".pdf", ".svg", ".html"):
        raise ValueError(f"--out {args.out}: the name must end in .png, .pdf, .svg or .html")
    if kind == ".html" and args.show:
        raise ValueError("--show is only for images; a page contains every quantity")
    runs = read_runs(args.runs)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    if kind == ".html":
        from fairseq_deepnet.tools.plotting.page import make  # loading plotly takes half a second

        write_text(args.out, make(runs, args.title))
    else:
        images.save(images.draw(runs, args.show or "loss", args.title), args.out)
    say(f"{args.out}: {len(runs)} run{'s' if len(runs) > 1 else ''}")
    return 0
