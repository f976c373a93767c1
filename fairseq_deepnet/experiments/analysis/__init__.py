"""`deepnet analysis`: the paper's Figures 3, 4 and 5 from runs that were monitored.

scripts/reproduce_analysis.sh trains the runs (sweeps fig3b, fig3c, fig4 and fig5 of
configs/sweeps/) and calls this: a table of ours beside the paper's on standard output, all numbers
as FIGURE.csv, the panels as FIGURE.png. The paper's numbers were read off its plots.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fairseq_deepnet.files import shown, write_text

NAMES = ("fig3a", "fig3b", "fig3c", "fig4", "fig5")
"""The figures; fairseq_deepnet.experiments.analysis.figures says what each is."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `deepnet analysis`."""
    parser.add_argument("figure", choices=NAMES, help="a figure of the paper, or a part of one")
    parser.add_argument("runs", type=Path, help="folder of its runs, as `deepnet sweep` made it")
    parser.add_argument("--out", type=Path, help="where FIGURE.csv and FIGURE.png go (RUNS)")
    parser.add_argument(
        "--updates",
        help="which updates, 10 or 1-5 (their mean): of the gradients in fig3a, fig3b and fig4, or"
        " those made before the model update of fig5 is taken (as in docs/analysis.md)",
    )


def run(args: argparse.Namespace) -> int:
    """Read, print, draw."""
    from fairseq_deepnet.experiments.analysis import drawing, figures, runs, tables
    from fairseq_deepnet.tools.plotting.style import save

    found = runs.read(args.runs)
    window = figures.window(args.figure, args.updates)
    panels = figures.make(args.figure, found, window)
    setting = runs.setting(found)
    print(tables.to_markdown(panels, setting), end="")
    out = args.out or args.runs
    out.mkdir(parents=True, exist_ok=True)
    csv, image = out / f"{args.figure}.csv", out / f"{args.figure}.png"
    write_text(csv, tables.to_csv(panels))
    save(drawing.draw(panels, setting), image)
    for file in (csv, image):
        print(f"written: {shown(file)}", file=sys.stderr)
    return 0
