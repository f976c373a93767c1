"""`deepnet analysis`: the paper's Figures 3, 4 and 5 from runs that were monitored.

scripts/reproduce_analysis.sh trains the runs (sweeps fig3b, fig3c, fig4 and fig5 of
configs/sweeps/) and calls this: a table of ours beside the paper's on standard output, all numbers
as FIGURE.csv, the panels as FIGURE.png. The paper's numbers were read off its plots.

In the image ours are full lines (dashed: from fairseq's own weights), the paper's dotted ones with
open markers.
"""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.experiments import panels, paper
from fairseq_deepnet.experiments.notes import trained
from fairseq_deepnet.experiments.panels import STOCK, Curve, CurvePanel
from fairseq_deepnet.files import say, shown, write_text
from fairseq_deepnet.tools.plotting.style import clean, look_of, new_figure, save
from fairseq_deepnet.tools.tables import comma_separated, markdown

MISSING: Final = "-"
_PANEL: Final = (6.2, 4.2)
_MANY: Final = 12
"""Points of ours from which on they have no markers."""
_WRAP: Final[dict[str, Any]] = {"break_on_hyphens": False}
_DECADES: Final = 6
"""What a logarithmic axis shows below the highest value."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet analysis`."""
    parser.add_argument(
        "figure", choices=panels.FIGURES, help="a figure of the paper, or a part of one"
    )
    parser.add_argument("runs", type=Path, help="folder of its runs, as `deepnet sweep` made it")
    parser.add_argument("--out", type=Path, help="where FIGURE.csv and FIGURE.png go (RUNS)")
    parser.add_argument(
        "--updates",
        help="which updates, 10 or 1-5 (their mean): of the gradients in fig3a, fig3b and fig4, or"
        " those made before the model update of fig5 is taken (as in docs/analysis.md)",
    )


def run(args: argparse.Namespace) -> int:
    """Read, print, draw."""
    runs = panels.read_runs(args.runs)
    made = panels.make(args.figure, runs, panels.window(args.figure, args.updates))
    # a training in epochs does not say how many updates it will have
    setting = trained([run.result for run in runs]).replace("? updates of", "updates of")
    print(to_markdown(made, setting), end="")
    out = args.out or args.runs
    out.mkdir(parents=True, exist_ok=True)
    csv, image = out / f"{args.figure}.csv", out / f"{args.figure}.png"
    write_text(csv, to_csv(made))
    save(draw(made, setting), image)
    for file in (csv, image):
        say(f"written: {shown(file)}")
    return 0


def number(value: float | None, mark: str = "") -> str:
    """Write three significant digits, without an exponent down to 0.001."""
    if value is None:
        return MISSING
    if value and abs(value) < 1e-3:
        return f"{mark}{value:.2g}"
    return mark + (f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}")


def to_markdown(plots: Sequence[CurvePanel], setting: str) -> str:
    """Return a table a panel: a row a curve for ours, below it one for the paper's, marked ≈."""
    parts, notes = [], [f"ours: {setting}"]
    for panel in plots:
        table = paper.tables().get(panel.name)  # None where it is of ours alone
        rows = [["", "", *(f"{x:g}" for x in panel.columns)]]
        for curve in panel.curves:
            rows.append([curve.name, "ours", *(number(curve.mean(x)) for x in panel.columns)])
            if curve.published:
                theirs = [number(curve.published.get(x), "≈") for x in panel.columns]
                rows.append(["", "paper", *theirs])
        parts.append(f"{panel.name}: {panel.title}\n\n{markdown(rows, 2)}\n")
        if table is not None:
            what = f"{table.certainty} (≈), {table.source}: {table.metric}"
            notes.append(f"paper {panel.name}: {what}")
    return "\n".join([*parts, *notes, ""])


def to_csv(plots: Sequence[CurvePanel]) -> str:
    """Return a line for every x of every curve, with the mean over seeds and their range."""
    heading = ("panel", "line", "x", "ours", "seeds", "lowest", "highest", "paper")
    lines: list[Sequence[object]] = [heading]
    for panel, curve in ((one, curve) for one in plots for curve in one.curves):
        for x in sorted(curve.ours.keys() | curve.published.keys()):
            ours: list[Any] = [""] * 4
            if values := curve.ours.get(x, []):
                ours = [curve.mean(x), len(values), min(values), max(values)]
            row = [x, *ours, curve.published.get(x, "")]
            plain = [f"{item:.6g}" if isinstance(item, float) else item for item in row]
            lines.append([panel.name, curve.key, *plain])
    return comma_separated(lines)


def draw(plots: Sequence[CurvePanel], setting: str) -> Any:
    """Draw two panels a row, with one legend for all where they have the same curves."""
    columns = min(2, len(plots))
    rows = math.ceil(len(plots) / columns)
    width, height = _PANEL
    figure, grid = new_figure(rows, columns, (max(7.5, width * columns), height * rows + 0.9))
    alike = len(plots) > 1 and len({tuple(x.key for x in panel.curves) for panel in plots}) == 1
    for axes, panel in zip(grid.flat, plots, strict=False):
        _draw_panel(axes, panel)
        if not alike:
            axes.legend(frameon=False, fontsize="small", handlelength=3.5)
    for axes in list(grid.flat)[len(plots) :]:
        axes.set_visible(False)
    if alike:
        labelled = grid[0][0].get_legend_handles_labels()
        names = min(3, len(plots[0].curves))
        figure.legend(*labelled, loc="outside upper center", ncols=names, frameon=False)
    sources = {table.source for p in plots if (table := paper.tables().get(p.name))}
    theirs = f"read off {', '.join(sorted(sources))} of {paper.REFERENCE} (IWSLT-14 De-En)"
    caption = (f"full and dashed lines: ours, {setting}", f"dotted: {theirs}")
    lines = [line for text in caption for line in textwrap.wrap(text, 62 * columns + 20, **_WRAP)]
    figure.supxlabel("\n".join(lines), fontsize="small")
    return figure


def _draw_panel(axes: Any, panel: CurvePanel) -> None:
    # a curve looks the same in every panel, whichever others are there; a run with another start
    # has the colour of the one that it is compared with
    table = paper.tables().get(panel.name)
    keys = [*(table.rows if table else ()), *(curve.key for curve in panel.curves)]
    order = list(dict.fromkeys(key.replace(STOCK, "") for key in keys))
    for curve in panel.curves:
        _draw_curve(axes, curve, order.index(curve.key.replace(STOCK, "")), panel.log_y)
    if panel.log_y:
        axes.set_yscale("log")
    axes.set_ylim(bottom=_bottom(panel))
    axes.set_title(textwrap.fill(panel.title, 70, **_WRAP), fontsize="medium")
    axes.set_xlabel(panel.x)
    axes.set_ylabel(f"{panel.y} (logarithmic)" if panel.log_y else panel.y)
    axes.xaxis.get_major_locator().set_params(integer=True)
    clean(axes)


def _bottom(panel: CurvePanel) -> float | None:
    """Return where the axis begins: at zero, unless everything is far above it; if logarithmic,
    some decades below the highest value. None leaves it to matplotlib.
    """
    values = [y for curve in panel.curves for y in curve.published.values()]
    values += [y for curve in panel.curves for ys in curve.ours.values() for y in ys]
    finite = [y for y in values if math.isfinite(y)]
    if panel.log_y:
        lowest = max(finite, default=1.0) * 10.0**-_DECADES
        return lowest if min(finite, default=1.0) < lowest else None
    return 0.0 if not finite or min(finite) < 0.4 * max(finite) else None


def _draw_curve(axes: Any, curve: Curve, place: int, log_y: bool) -> None:
    def shows(y: float | None) -> bool:
        return y is not None and math.isfinite(y) and (y > 0 or not log_y)

    color, marker, _ = look_of(place)
    xs = [x for x in sorted(curve.ours) if shows(curve.mean(x))]
    if xs:
        lows = [min(curve.ours[x]) for x in xs]
        highs = [max(curve.ours[x]) for x in xs]
        line = "--" if STOCK in curve.key else "-"
        style = {"color": color, "marker": marker if len(xs) < _MANY else None, "markersize": 4}
        means = [curve.mean(x) for x in xs]
        axes.plot(xs, means, line, linewidth=1.8, label=f"{curve.name}, ours", **style)
        if lows != highs:
            axes.fill_between(xs, lows, highs, color=color, alpha=0.18, linewidth=0)
    theirs = [point for point in sorted(curve.published.items()) if shows(point[1])]
    if theirs:
        look = {"color": color, "marker": marker, "markersize": 5, "linewidth": 1.1}
        label = f"{curve.name}, paper"
        axes.plot(*zip(*theirs, strict=True), ":", markerfacecolor="none", label=label, **look)
