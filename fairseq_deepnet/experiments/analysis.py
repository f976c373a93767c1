"""`deepnet analysis`: the paper's figures 3, 4 and 5 from monitored runs.

    deepnet sweep fig5; deepnet analysis fig5 runs/fig5

The sweeps fig3b, fig3c, fig4 (also for fig3a) and fig5 train the runs. The command prints tables of
our numbers and the paper's, which were read off its plots, and writes FIGURE.csv and FIGURE.png.
The key of a line in a plot is the key of its row in paper.yaml.

Iteration i, counted from 0, refers to the model after i updates. Its model update is measured after
update i, its activations and gradients at update i + 1. Our lines are solid, or dashed with
fairseq's initialisation; the paper's lines are dotted and have open markers.
"""

import argparse
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from fairseq_deepnet.experiments import paper, results
from fairseq_deepnet.experiments.paper import Key
from fairseq_deepnet.experiments.results import Run
from fairseq_deepnet.experiments.tables import describe_settings
from fairseq_deepnet.files import say, shown, write_text
from fairseq_deepnet.monitoring.records import Record
from fairseq_deepnet.tools.plotting.images import clean, look_of, new_figure, save
from fairseq_deepnet.tools.tables import markdown

UPDATES: Final = {"fig3a": "26-30", "fig3b": "1-5", "fig3c": "1", "fig4": "26-30", "fig5": "5"}
"""Figure -> updates that are shown by default; the paper does not state which it shows."""
STOCK: Final = "-stock"
"""Part of the names of runs with `--init stock`, fairseq's initialisation."""
OWN_NAMES: Final = {
    "post-ln-stock": "Post-LN, fairseq's initialisation",
    "post-ln-stock_warmup": "Post-LN, warm-up, fairseq's initialisation",
    "post-ln-stock_no-warmup": "Post-LN, no warm-up, fairseq's initialisation",
}
"""Key of a line that is not in the paper -> name of the line."""
_MANY: Final = 12
"""Maximum number of columns of a table, and of points with markers."""
_GRADIENT: Final = "gradient norm"
_MOVED: Final = "norm of F(x, θᵢ) − F(x, θ₀)"
_INPUT: Final = "norm, mean over LayerNorms"
_AXES: Final = {
    "fig3a": ("(a) gradient norm of the top decoder layers, {}", "decoder layer", _GRADIENT),
    "fig3b": ("(b) gradient norm of the last decoder layer, {}", "layers per side", _GRADIENT),
    "fig3c": ("(c) validation loss", "epoch, from 0", "loss, bits per token"),
    "fig4a": ("(a) accumulated model update", "updates", _MOVED),
    "fig4b": ("(b) LayerNorm input after the feed-forward network", "iteration", _INPUT),
    "fig4c": ("(c) LayerNorm input after self-attention", "iteration", _INPUT),
    "fig4d": ("(d) gradient norm of every decoder layer, {}", "decoder layer", _GRADIENT),
    "fig5": ("model update by depth, {}", "layers per side", _MOVED),
}
"""Plot -> title, with {} for the updates, and labels of the axes."""
_LOGARITHMIC: Final = ("fig4d", "fig5")


@dataclass
class Plot:
    """One of the paper's plots, with our lines.

    Args:
        frame: table with the columns line, x, ours (mean over seeds), seeds, lowest, highest and
            paper; the paper's lines come first
    """

    name: str
    title: str
    frame: pd.DataFrame

    @property
    def columns(self) -> list[float]:
        """The table's x values: all, or if there are more than `_MANY`, only those in the paper."""
        everything = sorted(self.frame["x"].unique())
        theirs = sorted(self.frame.dropna(subset=["paper"])["x"].unique())
        return theirs if theirs and len(everything) > _MANY else everything

    def lines(self) -> list[tuple[Key, str, pd.DataFrame]]:
        """Return the key, name and rows of each line."""
        names = OWN_NAMES | dict(paper.table(self.name).names)
        groups = self.frame.groupby("line", sort=False)
        return [(str(key), names.get(str(key), str(key)), rows) for key, rows in groups]


def window(text: str) -> range:
    """Parse a range of updates, such as "10" or "1-5"."""
    first, _, last = text.partition("-")
    if not (updates := range(int(first), int(last or first) + 1)):
        raise argparse.ArgumentTypeError(f"{text} contains no update; give one, or FIRST-LAST")
    return updates


def make(figure: str, runs: Sequence[Run], updates: range) -> list[Plot]:
    """Build the plots of a figure; raise ValueError if no run recorded a plot's quantity."""
    measured = {r["update"] for run in runs for r in run.records}.intersection(updates)
    first, last = min(measured, default=0), max(measured, default=0)  # fig3c needs none
    period = f"update {first}" if first == last else f"mean of updates {first} to {last}"
    for run in runs:
        found = measured.intersection(r["update"] for r in run.records)
        if len(found) < len(measured):
            say(f"{shown(run.folder)} recorded {len(found)} of the {len(measured)} updates")
    plots = []
    for name in (name for name in _AXES if name.startswith(figure)):
        points = [point for run in runs for point in points_of(name, run, updates)]
        if not points:
            sweep = "fig4" if figure == "fig3a" else figure
            raise ValueError(
                f"{name}: none of these runs recorded its data; run `deepnet sweep {sweep}`, or set"
                " --updates"
            )
        rows, present = paper.table(name).rows, dict.fromkeys(key for key, _, _ in points)
        order = sorted(present, key=lambda key: list(rows).index(key) if key in rows else len(rows))
        values = pd.DataFrame(points, columns=["line", "x", "value"]).astype({"value": float})
        # pandas's own mean skips NaN
        ours = values.groupby(["line", "x"])["value"].agg(
            ours=lambda v: float(np.mean(v.to_numpy())), seeds="size", lowest="min", highest="max"
        )
        theirs = [(key, float(x), float(v)) for key in order for x, v in rows.get(key, {}).items()]
        published = pd.DataFrame(theirs, columns=["line", "x", "paper"]).set_index(["line", "x"])
        frame = ours.join(published, how="outer").reset_index().astype({"x": float})
        frame["line"] = pd.Categorical(frame["line"], order)
        plots.append(Plot(name, _AXES[name][0].format(period), frame.sort_values(["line", "x"])))
    return plots


def points_of(plot: str, run: Run, updates: range) -> list[tuple[Key, float, float]]:
    """Return the line's key, x and value of each of a run's points in a plot."""
    cell = re.sub(r"\.seed\d+$", "", run.folder.name)
    kind = cell.rpartition("_")[0]  # {kind}_{depth}l
    depth = int(str(run.config.options.get("decoder-layers", 0)))
    chosen = [record for record in run.records if record["update"] in updates]
    gradients = list(enumerate(layer_gradients(chosen), start=1))
    points: list[tuple[Key, float, float | None]] = []
    if plot == "fig3a" and cell.endswith("_warmup"):
        points = [(cell, layer, norm) for layer, norm in gradients[-6:]]
    elif plot == "fig3b" and gradients:
        points = [(kind, depth, gradients[-1][1])]
    elif plot == "fig3c":
        points = [(cell, epoch, loss) for epoch, (_, loss) in enumerate(run.valid_loss)]
    elif plot == "fig4a" and run.records:
        points = [
            (cell, record["update"], record["values"].get("model_update")) for record in run.records
        ]
        points.append((cell, 0, 0.0))
    elif plot in ("fig4b", "fig4c"):
        part = "ffn" if plot == "fig4b" else "self_attn"
        points = [(cell, r["update"] - 1, layer_norm_input(r, part)) for r in run.records]
    elif plot == "fig4d":
        points = [(cell, layer, norm) for layer, norm in gradients]
    elif plot == "fig5":
        points = [(kind, depth, mean(record["values"].get("model_update") for record in chosen))]
    return [(key, x, value) for key, x, value in points if value is not None]


# Numbers from records; monitoring/quantities.md describes the quantities.


def layer_norm_input(record: Record, part: str) -> float | None:
    """Return the norm of the LayerNorm input after one sublayer, averaged over all layers."""
    sides = record["values"].get("layer_norm_input", {}).values()
    return mean(value for side in sides for value in side.get(part, []))


def layer_gradients(measured: Sequence[Record]) -> list[float | None]:
    """Return the decoder layers' gradient norms from bottom to top, averaged over updates."""
    lists = [record["values"].get("gradient_norm", {}).get("decoder", {}) for record in measured]
    layers = [item["layer"] for item in lists if "layer" in item]
    return [mean(values) for values in zip(*layers, strict=True)]


def mean(values: Iterable[Any]) -> float | None:
    """Return the mean of the values that are not None, or None if there are none."""
    numbers = [float(value) for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet analysis`."""
    parser.add_argument("figure", choices=UPDATES, help="figure of the paper, or part of one")
    parser.add_argument("runs", type=Path, help="folder of runs from `deepnet sweep`")
    parser.add_argument("--out", type=Path, help="folder for FIGURE.csv and FIGURE.png (RUNS)")
    parser.add_argument(
        "--updates",
        type=window,
        help="update at which gradients (fig3a, fig3b, fig4) or model updates (fig5) are shown: 10,"
        " or 1-5 for a mean (as in docs/reports/figures.md)",
    )


def run(args: argparse.Namespace) -> int:
    """Read the runs, print the tables, and write the CSV file and the image."""
    runs = results.read_runs([args.runs])
    updates = args.updates or window(UPDATES[args.figure])
    plots = make(args.figure, runs, updates)
    setting = describe_settings(results.table_of(runs))
    print(to_markdown(plots, setting), end="")
    out = args.out or args.runs
    out.mkdir(parents=True, exist_ok=True)
    csv, image = out / f"{args.figure}.csv", out / f"{args.figure}.png"
    frame = pd.concat([plot.frame.assign(panel=plot.name) for plot in plots])
    columns = ["panel", "line", "x", "ours", "seeds", "lowest", "highest", "paper"]
    frame = frame[columns].astype({"seeds": "Int64"})
    write_text(csv, frame.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    save(draw(plots, setting), image)
    for file in (csv, image):
        say(f"written: {shown(file)}")
    return 0


def number(value: float, mark: str = "") -> str:
    """Format a value with three significant digits."""
    if math.isnan(value):
        return "-"
    return f"{mark}{value:,.0f}" if abs(value) >= 1000 else f"{mark}{value:.3g}"


def to_markdown(plots: Sequence[Plot], setting: str) -> str:
    """Return a table per plot; the paper's numbers (if any), marked ≈, are below ours."""
    parts, notes = [], [f"ours: {setting}"]
    for plot in plots:
        table = paper.table(plot.name)
        rows = [["", "", *(f"{x:g}" for x in plot.columns)]]
        for _, name, line in plot.lines():
            values = line.set_index("x").reindex(plot.columns)
            rows.append([name, "ours", *map(number, values["ours"])])
            if line["paper"].notna().any():
                rows.append(["", "paper", *(number(value, "≈") for value in values["paper"])])
        parts.append(f"{plot.name}: {plot.title}\n\n{markdown(rows, 2)}\n")
        notes.append(f"paper {plot.name}: {table.certainty} (≈), {table.source}: {table.metric}")
    return "\n".join([*parts, *notes, ""])


def draw(plots: Sequence[Plot], setting: str) -> Any:
    """Draw all plots, two per row."""
    columns = min(2, len(plots))
    rows = math.ceil(len(plots) / columns)
    figure = new_figure((max(7.5, 6.2 * columns), 4.2 * rows + 0.9))
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, plot in zip(grid.flat, plots, strict=False):
        _draw_plot(axes, plot)
        axes.legend(frameon=False, fontsize="small", handlelength=3.5)
    for axes in list(grid.flat)[len(plots) :]:
        axes.set_visible(False)
    sources = ", ".join(sorted({paper.table(plot.name).source for plot in plots}))
    theirs = f"read off {sources} of {paper.REFERENCE} (IWSLT-14 De-En)"
    caption = f"solid and dashed lines: ours, {setting}\ndotted: {theirs}"
    figure.supxlabel(caption, fontsize="small", wrap=True)
    return figure


def _draw_plot(axes: Any, plot: Plot) -> None:
    # a line looks the same in all plots, and keeps its colour with fairseq's initialisation
    keys = [*paper.table(plot.name).rows, *(key for key, *_ in plot.lines())]
    order = list(dict.fromkeys(key.replace(STOCK, "") for key in keys))
    for key, name, line in plot.lines():
        look = look_of(order.index(key.replace(STOCK, "")))
        color, marker = look["color"], look["marker"]
        ours, theirs = line.dropna(subset=["ours"]), line.dropna(subset=["paper"])
        style = {"color": color, "marker": marker if len(ours) < _MANY else None, "markersize": 4}
        dashes = "--" if STOCK in key else "-"
        axes.plot(ours["x"], ours["ours"], dashes, linewidth=1.8, label=f"{name}, ours", **style)
        if (ours["seeds"] > 1).any():
            band = ours["lowest"], ours["highest"]
            axes.fill_between(ours["x"], *band, color=color, alpha=0.18, linewidth=0)
        if len(theirs):
            hollow = {"color": color, "marker": marker, "markersize": 5, "linewidth": 1.1}
            hollow |= {"markerfacecolor": "none", "label": f"{name}, paper"}
            axes.plot(theirs["x"], theirs["paper"], ":", **hollow)
    if plot.name in _LOGARITHMIC:
        axes.set_yscale("log", nonpositive="mask")
    axes.set_title(plot.title, fontsize="medium", wrap=True)
    _, x, y = _AXES[plot.name]
    axes.set(xlabel=x, ylabel=y)
    axes.xaxis.get_major_locator().set_params(integer=True)
    clean(axes)
