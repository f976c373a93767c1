"""Draw depth.png, norms.png and compare_methods.png: `python docs/draw_figures.py`.

The values are in depth.csv and compare_methods.csv. The script prints the fitted laws of depth.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fairseq_deepnet.experiments import report
from fairseq_deepnet.experiments.tables import Table
from fairseq_deepnet.tools.plotting import images

DOCS = Path(__file__).resolve().parent
# their loss exploded or their gradients vanished (reports/methods.md)
FAILED = ["admin_18l_lr4e-3", "admin_50l_lr4e-3"]


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
    draw("depth.csv", "depth", "Five schemes, Multi30k German-English", "depth.png")
    draw("depth.csv", "norms", "LayerNorms trained or frozen, learning rate 4e-3", "norms.png")
    every = "Every scheme after 200 updates, Multi30k German-English"
    draw("compare_methods.csv", "valid_nll", every, "compare_methods.png")
