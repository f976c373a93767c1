"""`deepnet analysis`: the paper's figures 3, 4 and 5 from monitored runs.

    deepnet sweep fig5; deepnet analysis fig5 runs/fig5

The sweeps fig3b, fig3c, fig4 (also for fig3a) and fig5 train the runs. The command prints a table
with the paper's numbers, which were read off its plots, and writes FIGURE.csv and FIGURE.png.

The key of a line is its row in paper.yaml. Iteration i, counted
from 0, is the pass after i updates: the model update after update i, and activations and gradients
of update i + 1, which uses the parameters of update i. Our lines are solid (dashed: initialised as
fairseq does), the paper's are dotted with open markers.
"""

from __future__ import annotations

import argparse
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fairseq_deepnet.experiments import paper, results
from fairseq_deepnet.experiments.paper import Key
from fairseq_deepnet.experiments.results import Run
from fairseq_deepnet.experiments.tables import describe_settings
from fairseq_deepnet.files import say, shown, write_text
from fairseq_deepnet.monitoring import records
from fairseq_deepnet.monitoring.records import Record
from fairseq_deepnet.tools.plotting.images import clean, look_of, new_figure, save
from fairseq_deepnet.tools.tables import markdown

if TYPE_CHECKING:
    import pandas as pd

UPDATES: Final = {"fig3a": "26-30", "fig3b": "1-5", "fig4": "26-30", "fig5": "5"}
"""Default updates of a figure, where the paper does not state them."""
STOCK: Final = "-stock"
"""Part of the names of runs with `--init stock`."""
OWN_NAMES: Final = {
    "post-ln-stock": "Post-LN, fairseq's initialisation",
    "post-ln-stock_warmup": "Post-LN, warm-up, fairseq's initialisation",
    "post-ln-stock_no-warmup": "Post-LN, no warm-up, fairseq's initialisation",
}
"""Curves that the paper does not have."""
_MANY: Final = 12
"""Maximum number of columns of a table, and of points with markers."""
_MOVED: Final = "norm of F(x, θᵢ) − F(x, θ₀)"
Point = tuple[Key, float, float | None]
"""Key of a curve, x, and the value of a run."""

MISSING: Final = "-"
_SIZE: Final = (6.2, 4.2)
_WRAP: Final[dict[str, Any]] = {"break_on_hyphens": False}


@dataclass(frozen=True)
class MonitoredRun:
    """A cell of a sweep with its measurements, named without its seed."""

    cell: str
    records: tuple[Record, ...]
    run: Run

    @property
    def depth(self) -> float:
        """Layers of the decoder."""
        return float(str(self.run.config.options.get("decoder-layers", 0)))

    @property
    def kind(self) -> Key:
        """The cell's name without its depth, {kind}_{depth}l."""
        return self.cell.rpartition("_")[0]

    def at(self, updates: range) -> list[Record]:
        """Return the records of these updates, as far as the run has them."""
        return [record for record in self.records if record["update"] in updates]


def read_runs(folder: Path) -> list[MonitoredRun]:
    """Read the cells of a sweep's folder that have started.

    Raises FileNotFoundError if there are none, ValueError for a run outside a sweep.
    """
    runs = []
    for path in results.find_runs(folder):
        if not (path / "config.yaml").is_file():
            continue
        run = results.read_run(path)
        if not run.cell.get("places"):
            raise ValueError(f"{shown(path)} is no cell of a sweep: give the folder of one")
        cell = path.name.removesuffix(f".seed{run.cell['places'][0]['seed']}")
        measured = path / records.NAME
        lines = tuple(records.read(measured)) if measured.is_file() else ()
        runs.append(MonitoredRun(cell, lines, run))
    return runs


@dataclass
class Plot:
    """A plot of the paper.

    Args:
        frame: line, x, ours (mean over seeds), seeds, lowest, highest, paper; lines in the paper's
            order, then further ones of ours
    """

    name: str
    title: str
    x: str
    y: str
    frame: pd.DataFrame
    log_y: bool = False

    @property
    def columns(self) -> list[float]:
        """x values of the table: all, or only those of the paper if there are many."""
        everything = sorted(self.frame["x"].unique())
        theirs = sorted(self.frame.dropna(subset=["paper"])["x"].unique())
        return theirs if theirs and len(everything) > _MANY else everything

    def lines(self) -> list[tuple[Key, str, pd.DataFrame]]:
        """Return key, name and rows of each line."""
        names = OWN_NAMES | dict(paper.table(self.name).names)
        groups = self.frame.groupby("line", sort=False)
        return [(str(key), names.get(str(key), str(key)), rows) for key, rows in groups]


def window(figure: str, text: str | None) -> range:
    """Parse the updates of a figure, "10" or "1-5"; by default those of UPDATES."""
    text = text or UPDATES.get(figure, "1")
    match = re.fullmatch(r"([1-9]\d*)(?:-([1-9]\d*))?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if last < first:
        raise ValueError(f"--updates {text}: an update from 1 on is expected, or a range as in 1-5")
    return range(first, last + 1)


def make(figure: str, runs: Sequence[MonitoredRun], updates: range) -> list[Plot]:
    """Build the plots of a figure; raise ValueError if no run has recorded the quantity."""
    plots = FIGURES[figure](runs, updates)
    for plot in plots:
        if plot.frame["ours"].isna().all():
            raise ValueError(
                f"{plot.name}: none of these runs has recorded it; run"
                f" `deepnet sweep {'fig4' if figure == 'fig3a' else figure}`"
            )
    return plots


def _plot(
    name: str, title: str, x: str, y: str, points: Iterable[Point], log_y: bool = False
) -> Plot:
    """Build a plot from points and the paper's values for the same lines."""
    import pandas as pd

    points, rows = list(points), paper.table(name).rows
    present = dict.fromkeys(key for key, _, _ in points)
    order = [key for key in rows if key in present] + [key for key in present if key not in rows]
    measured = [point for point in points if point[2] is not None]
    values = pd.DataFrame(measured, columns=["line", "x", "value"]).astype({"value": float})
    # not pandas's own mean, which skips NaN
    ours = values.groupby(["line", "x"])["value"].agg(
        ours=lambda v: float(np.mean(v.to_numpy())), seeds="size", lowest="min", highest="max"
    )
    theirs = [(key, float(x), float(v)) for key in order for x, v in rows.get(key, {}).items()]
    published = pd.DataFrame(theirs, columns=["line", "x", "paper"]).set_index(["line", "x"])
    frame = ours.join(published, how="outer").reset_index().astype({"x": float})
    frame["line"] = pd.Categorical(frame["line"], order)
    return Plot(name, title, x, y, frame.sort_values(["line", "x"]), log_y)


def _inputs(runs: Sequence[MonitoredRun], part: str) -> list[Point]:
    """Return the LayerNorm inputs after a sublayer, by iteration."""
    points = [
        (run.cell, r["update"] - 1, layer_norm_input(r, part)) for run in runs for r in run.records
    ]
    return sorted(points, key=lambda point: point[1])


def _moves(runs: Sequence[MonitoredRun]) -> list[Point]:
    """Return the accumulated model update after each update, and 0 before the first."""
    points = [(run.cell, r["update"], model_update(r)) for run in runs for r in run.records]
    points += [(run.cell, 0, 0.0) for run in runs if run.records]
    return sorted(points, key=lambda point: point[1])


def _by_layer(runs: Sequence[MonitoredRun], updates: range, lowest: int = 1) -> Iterator[Point]:
    for run in runs:
        for layer, value in enumerate(layer_gradients(run.at(updates)), start=1):
            if layer >= lowest:
                yield run.cell, layer, value


def _named(updates: range, unit: str = "update") -> str:
    first, last = updates[0], updates[-1]
    return f"{unit} {first}" if first == last else f"mean of updates {first} to {last}"


def _by_depth(runs: Sequence[MonitoredRun]) -> list[MonitoredRun]:
    return sorted(runs, key=lambda run: run.depth)


def _fig3a(runs: Sequence[MonitoredRun], updates: range) -> list[Plot]:
    chosen = [run for run in runs if run.cell.endswith("_warmup")]
    depth = max((int(run.depth) for run in chosen), default=0)
    title = f"(a) gradient norm of the top decoder layers, {_named(updates)}"
    points = _by_layer(chosen, updates, lowest=max(1, depth - 5))
    return [_plot("fig3a", title, "decoder layer", "gradient norm", points)]


def _fig3b(runs: Sequence[MonitoredRun], updates: range) -> list[Plot]:
    title = f"(b) gradient norm of the last decoder layer, {_named(updates)}"
    layers = ((run, layer_gradients(run.at(updates))) for run in _by_depth(runs))
    points = [(run.kind, run.depth, norms[-1] if norms else None) for run, norms in layers]
    return [_plot("fig3b", title, "layers per side", "gradient norm", points)]


def _fig3c(runs: Sequence[MonitoredRun], updates: range) -> list[Plot]:
    epochs = ((run, enumerate(run.run.valid_loss)) for run in runs)
    points = [(run.cell, epoch, loss) for run, losses in epochs for epoch, (_, loss) in losses]
    title, x = "(c) validation loss by epoch", "epoch, the first is 0"
    return [_plot("fig3c", title, x, "loss, bits per token", points)]


def _fig4(runs: Sequence[MonitoredRun], updates: range) -> list[Plot]:
    a, x = "(a) accumulated model update", "updates made"
    b = "(b) LayerNorm input after the feed-forward network"
    c = "(c) LayerNorm input after self-attention"
    d = f"(d) gradient norm of every decoder layer, {_named(updates)}"
    norm, layers = "norm, mean over LayerNorms", _by_layer(runs, updates)
    return [
        _plot("fig4a", a, x, _MOVED, _moves(runs)),
        _plot("fig4b", b, "iteration", norm, _inputs(runs, "ffn")),
        _plot("fig4c", c, "iteration", norm, _inputs(runs, "self_attn")),
        _plot("fig4d", d, "decoder layer", "gradient norm", layers, log_y=True),
    ]


def _fig5(runs: Sequence[MonitoredRun], updates: range) -> list[Plot]:
    title, x = f"model update by depth, {_named(updates, 'after update')}", "layers per side"
    updates_of_runs = ((run, mean(map(model_update, run.at(updates)))) for run in _by_depth(runs))
    points = [(run.kind, run.depth, value) for run, value in updates_of_runs]
    return [_plot("fig5", title, x, _MOVED, points, log_y=True)]


FIGURES: Final = {"fig3a": _fig3a, "fig3b": _fig3b, "fig3c": _fig3c, "fig4": _fig4, "fig5": _fig5}


# From records to numbers. A quantity's name and layout are those of monitoring/quantities.md.


def model_update(record: Record) -> float | None:
    """Return the accumulated model update after the record's update."""
    value = record["values"].get("model_update")
    return None if value is None else float(value)


def layer_norm_input(record: Record, part: str) -> float | None:
    """Return the mean LayerNorm input after one sublayer, over all layers of both sides."""
    quantity = record["values"].get("layer_norm_input", {})
    sides = [quantity.get(side, {}).get(part, []) for side in ("encoder", "decoder")]
    return mean(value for side in sides for value in side)


def layer_gradients(measured: Sequence[Record]) -> list[float | None]:
    """Return the mean gradient norm of each decoder layer over updates, bottom first."""
    lists = [record["values"].get("gradient_norm", {}).get("decoder", {}) for record in measured]
    layers = [item["layer"] for item in lists if "layer" in item]
    return [mean(values) for values in zip(*layers, strict=True)]


def mean(values: Iterable[Any]) -> float | None:
    """Return the mean of the values that exist (not finite if one is not), or None."""
    numbers = [float(value) for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


# The command, the table and the image.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet analysis`."""
    parser.add_argument("figure", choices=FIGURES, help="a figure of the paper, or a part of one")
    parser.add_argument("runs", type=Path, help="folder of its runs, as `deepnet sweep` made it")
    parser.add_argument("--out", type=Path, help="where FIGURE.csv and FIGURE.png go (RUNS)")
    parser.add_argument(
        "--updates",
        help="which updates, 10 or 1-5 (their mean): of the gradients in fig3a, fig3b and fig4, or"
        " those made before the model update of fig5 is taken (as in docs/reports/figures.md)",
    )


def run(args: argparse.Namespace) -> int:
    """Read the runs, print the table, write CSV and image."""
    runs = read_runs(args.runs)
    plots = make(args.figure, runs, window(args.figure, args.updates))
    setting = describe_settings(results.table_of([run.run for run in runs]))
    print(to_markdown(plots, setting), end="")
    out = args.out or args.runs
    out.mkdir(parents=True, exist_ok=True)
    csv, image = out / f"{args.figure}.csv", out / f"{args.figure}.png"
    write_text(csv, to_csv(plots))
    save(draw(plots, setting), image)
    for file in (csv, image):
        say(f"written: {shown(file)}")
    return 0


def number(value: float | None, mark: str = "") -> str:
    """Format with three significant digits, without an exponent down to 0.001."""
    if value is None or math.isnan(value):
        return MISSING
    if value and abs(value) < 1e-3:
        return f"{mark}{value:.2g}"
    return mark + (f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}")


def to_markdown(plots: Sequence[Plot], setting: str) -> str:
    """Return a table per plot: a row per line, with the paper's below it, marked ≈."""
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
        what = f"{table.certainty} (≈), {table.source}: {table.metric}"
        notes.append(f"paper {plot.name}: {what}")
    return "\n".join([*parts, *notes, ""])


def to_csv(plots: Sequence[Plot]) -> str:
    """Return a row for every x of every line, with the mean over seeds and their range."""
    import pandas as pd

    frame = pd.concat([plot.frame.assign(panel=plot.name) for plot in plots])
    columns = ["panel", "line", "x", "ours", "seeds", "lowest", "highest", "paper"]
    frame = frame[columns].astype({"seeds": "Int64"})
    text: str = frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    return text


def draw(plots: Sequence[Plot], setting: str) -> Any:
    """Draw two plots per row, with one legend if all have the same lines."""
    columns = min(2, len(plots))
    rows = math.ceil(len(plots) / columns)
    width, height = _SIZE
    figure = new_figure((max(7.5, width * columns), height * rows + 0.9))
    grid = figure.subplots(rows, columns, squeeze=False)
    alike = len(plots) > 1 and len({tuple(key for key, *_ in p.lines()) for p in plots}) == 1
    for axes, plot in zip(grid.flat, plots, strict=False):
        _draw_plot(axes, plot)
        if not alike:
            axes.legend(frameon=False, fontsize="small", handlelength=3.5)
    for axes in list(grid.flat)[len(plots) :]:
        axes.set_visible(False)
    if alike:
        labelled = grid[0][0].get_legend_handles_labels()
        names = min(3, len(plots[0].lines()))
        figure.legend(*labelled, loc="outside upper center", ncols=names, frameon=False)
    sources = ", ".join(sorted({paper.table(plot.name).source for plot in plots}))
    theirs = f"read off {sources} of {paper.REFERENCE} (IWSLT-14 De-En)"
    caption = (f"full and dashed lines: ours, {setting}", f"dotted: {theirs}")
    lines = [line for text in caption for line in textwrap.wrap(text, 62 * columns + 20, **_WRAP)]
    figure.supxlabel("\n".join(lines), fontsize="small")
    return figure


def _draw_plot(axes: Any, plot: Plot) -> None:
    # a line looks the same in every plot; with fairseq's initialisation it keeps its colour
    keys = [*paper.table(plot.name).rows, *(key for key, *_ in plot.lines())]
    order = list(dict.fromkeys(key.replace(STOCK, "") for key in keys))
    for key, name, line in plot.lines():
        look = look_of(order.index(key.replace(STOCK, "")))
        color, marker = look["color"], look["marker"]
        if plot.log_y:
            line = line.mask(line[["ours", "lowest", "paper"]] <= 0)
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
    if plot.log_y:
        axes.set_yscale("log")
    axes.set_title(textwrap.fill(plot.title, 70, **_WRAP), fontsize="medium")
    axes.set_xlabel(plot.x)
    axes.set_ylabel(f"{plot.y} (logarithmic)" if plot.log_y else plot.y)
    axes.xaxis.get_major_locator().set_params(integer=True)
    clean(axes)
