"""Draw the figures of BLEU and loss against depth: `python docs/draw_figures.py`.

summary.png, the README's figure, is drawn from runs.csv; depth.png, norms.png and
compare_methods.png are drawn from depth.csv and compare_methods.csv. The script prints the fitted
laws of depth.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib import pyplot
from matplotlib.ticker import NullLocator

from fairseq_deepnet.experiments import report
from fairseq_deepnet.experiments.tables import Table
from fairseq_deepnet.tools.plotting import images

DOCS = Path(__file__).resolve().parent
# their loss exploded or their gradients vanished (reports/methods.md)
FAILED = ["admin_18l_lr4e-3", "admin_50l_lr4e-3"]
STYLES = {
    "t-fixup": ("T-Fixup", "#D55E00", "s-"),
    "dlcl": ("DLCL", "#009E73", "^-"),
    "b2t": ("B2T", "#E69F00", "P-"),
    "deepnorm": ("DeepNorm", "#0072B2", "o-"),
    "frozen": ("DeepNorm, norms frozen", "#0072B2", "o:"),
    "pre-ln": ("Pre-LN", "#CC79A7", "D-"),
    "admin": ("Admin", "#555555", "v-"),
}
LOWEST = 24.0
"""Lower end of the README's figure; worse runs appear as crosses."""


def summary() -> None:
    """Draw test BLEU against depth, with each method's best setting of the sweep `fair`."""
    runs = pd.read_csv(DOCS / "runs.csv")
    runs["depth"] = runs["layers"].str.extract(r"(\d+)L", expand=False).astype(float)
    runs["cell"] = runs["run"].str.replace(r"\.seed\d+", "", regex=True)
    fair = runs[runs["sweep"] == "fair"]
    selected = fair.loc[fair.groupby(["scheme", "depth"])["valid_nll"].idxmin(), "cell"]
    frozen = runs[runs["cell"].str.fullmatch(r"deepnorm_\d+l_norms-both")].assign(scheme="frozen")
    shown = pd.concat([fair[fair["cell"].isin(selected)], frozen])
    scores = shown.groupby(["scheme", "depth"])["bleu"].agg(["mean", "std"])
    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    crosses = dict.fromkeys(fair["depth"].unique(), 0)
    for scheme, (label, colour, style) in STYLES.items():
        points = scores.loc[scheme]
        trained = points[points["mean"] >= LOWEST]
        axes.errorbar(
            *(trained.index, trained["mean"], trained["std"].fillna(0)),
            **{"fmt": style, "color": colour, "label": label},
        )
        for depth in points.index.difference(trained.index):
            place = depth * 1.09 ** crosses[depth]  # side by side
            axes.plot(place, LOWEST, "x", color=colour, markersize=8, clip_on=False)
            crosses[depth] += 1
    axes.set(xscale="log", ylim=(LOWEST, 36), xlabel="layers per side", ylabel="test BLEU")
    axes.set_xticks([6, 18, 50, 100], ["6", "18", "50", "100"])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.35)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    images.save(figure, DOCS / "summary.png")


def draw(file: str, name: str, title: str, figure: str) -> None:
    """Draw the table `name` of a CSV file, with fitted laws of depth if it has BLEU scores."""
    entries = pd.read_csv(DOCS / file, dtype={"row": str, "column": str})
    entries = entries[entries["table"] == name].fillna({"runs": ""})
    entries.loc[entries["runs"].isin(FAILED), "status"] = "diverged"
    entries.loc[entries["status"] == "diverged", "ours"] = float("nan")
    entries = entries.replace({"none": "trained", "both": "frozen"})
    table = Table(title, pd.DataFrame(), [], entries, "row", "depth")
    if entries["measure"].iloc[0] == "bleu":
        table.fit_laws()
        print(name, *(f"{key}: {law}" for key, law in table.laws.items()), sep="\n")
    images.save(report.against_depth(table), DOCS / figure)


if __name__ == "__main__":
    summary()
    draw("depth.csv", "depth", "Five schemes, Multi30k German-English", "depth.png")
    draw("depth.csv", "norms", "LayerNorms trained or frozen, learning rate 4e-3", "norms.png")
    every = "Every scheme after 200 updates, Multi30k German-English"
    draw("compare_methods.csv", "valid_nll", every, "compare_methods.png")
