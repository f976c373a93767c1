"""Draw the README's figure: test BLEU against depth, from docs/depth.csv.

python benchmarks/summary_figure.py docs/summary.png

Points are means over seeds, and bars are standard deviations. Crosses at the lower edge are failed
runs, below 28 BLEU.
"""

import csv
import sys
from pathlib import Path

import matplotlib
from matplotlib import pyplot

METHODS = {
    "deepnorm": ("DeepNorm", "#0072B2", "o"),
    "t-fixup": ("T-Fixup", "#D55E00", "s"),
    "dlcl": ("DLCL", "#009E73", "^"),
    "pre-ln": ("Pre-LN", "#CC79A7", "D"),
    "admin": ("Admin", "#555555", "v"),
}
LOWEST = 28.0
DOCS = Path(__file__).parent.parent / "docs"


def main(file: str) -> None:
    with (DOCS / "depth.csv").open(encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["table"] == "depth" and row["ours"]]
    matplotlib.use("Agg")
    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    for scheme, (label, colour, marker) in METHODS.items():
        points = [
            (int(row["column"]), float(row["ours"]), float(row["deviation"] or 0))
            for row in rows
            if row["row"] == scheme
        ]
        trained = [point for point in points if point[1] >= LOWEST]
        depths, scores, deviations = zip(*trained, strict=True)
        axes.errorbar(depths, scores, deviations, color=colour, marker=marker, label=label)
        shift = 1.05 if scheme == "admin" else 0.95  # crosses of two methods do not overlap
        failed = [shift * depth for depth, score, _ in points if score < LOWEST]
        axes.plot(failed, [LOWEST] * len(failed), "x", color=colour, markersize=9, clip_on=False)
    axes.set(xscale="log", ylim=(LOWEST, 36), xlabel="layers per side", ylabel="test BLEU")
    axes.set_xticks([6, 18, 50, 100], ["6", "18", "50", "100"], minor=False)
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.grid(alpha=0.35)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(file, dpi=130)


if __name__ == "__main__":
    main(sys.argv[1])
