"""The figures of the page, as plotly draws them.

What page.js needs to know of a figure is in its layout's `meta`; in a trace's, `run` is the run's
place.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fairseq_deepnet.divergence.events import region_text
from fairseq_deepnet.monitoring.quantities import QUANTITIES
from fairseq_deepnet.tools.plotting.runs import Grid, Run
from fairseq_deepnet.tools.plotting.series import (
    Line,
    Scale,
    axis,
    columns,
    label_of,
    layer_ticks,
    scale_of,
    thin_line,
)
from fairseq_deepnet.tools.plotting.style import ABSENT, BROKEN, colour_of

_LOOKS: Final[dict[str, dict[str, Any]]] = {
    "solid": {"mode": "lines", "line": {"width": 2}},
    "dashed": {"mode": "lines", "line": {"width": 1.7, "dash": "dash"}},
    "dotted": {"mode": "lines", "line": {"width": 1.7, "dash": "dot"}},
    "dots": {"mode": "lines+markers", "line": {"width": 1, "dash": "dot"}, "marker": {"size": 7}},
}
_GRID: Final = "#e9ecef"
_AXIS: Final[dict[str, Any]] = {
    "gridcolor": _GRID,
    "linecolor": "#adb5bd",
    "showline": True,
    "ticks": "outside",
    "tickcolor": "#adb5bd",
    "zeroline": False,
    "automargin": True,
    "exponentformat": "power",
}
_MARKED: Final = 20
"""Events of a run that figures mark; the table has all."""

Figure = dict[str, Any]


def plain(text: str) -> str:
    """Return a name as plotly shows it: its text may hold tags."""
    return html.escape(text, quote=False)


def line_figure(runs: Sequence[Run], lines: Sequence[Line], show: str) -> Figure:
    """Return lines over updates, with the events of their runs."""
    traces = [trace for line in lines for trace in _traces(line)]
    drawn = sorted({line.run for line in lines})
    marks = [_marks(runs[number], colour_of(number), number) for number in drawn]
    scale = scale_of([np.asarray(line.values) for line in lines])
    layout = _layout("updates", label_of(show))
    layout["yaxis"] |= _vertical(scale) if show in QUANTITIES else {}
    layout["hovermode"] = "x unified" if len(lines) <= 12 else "closest"
    layout["meta"] = {"updates": True}
    layout["shapes"] = [shape for shapes, _ in marks for shape in shapes]
    layout["annotations"] = [note for _, notes in marks for note in notes]
    return _figure(traces, layout)


def _traces(line: Line) -> list[Any]:
    """Return a line, and a cross where its numbers are no longer finite."""
    updates, values = thin_line(line.updates, line.values)
    look = _LOOKS[line.look]
    if sum(map(math.isfinite, values)) == 1:  # a line of one point would not be seen
        look = {**look, "mode": "markers", "marker": {"size": 7}}
    common = {"type": "scatter", "meta": {"run": line.run}, "legendgroup": line.label}
    broken = [n for n, value in enumerate(values) if not math.isfinite(value)]
    first = [n for n in broken if n - 1 not in broken]
    drawn = {
        **common,
        **look,
        "name": plain(line.label),
        "line": {**look.get("line", {}), "color": colour_of(line.run)},
        "marker": {**look.get("marker", {}), "color": colour_of(line.run)},
        "x": np.asarray(updates, dtype=np.int32),
        "y": np.asarray([v if math.isfinite(v) else math.nan for v in values], dtype=np.float32),
        "hovertemplate": "%{y:.4g}",
    }
    finite = [value for value in values if math.isfinite(value)]
    if not first or not finite:
        return [drawn]
    crosses = {
        **common,
        "mode": "markers",
        "name": plain(line.label),
        "showlegend": False,
        "marker": {"symbol": "x", "size": 9, "color": colour_of(line.run)},
        "x": [updates[n] for n in first],
        "y": [next((v for v in values[n::-1] if math.isfinite(v)), finite[0]) for n in first],
        "text": [str(values[n]) for n in first],
        "hovertemplate": "not finite: %{text}",
    }
    return [drawn, crosses]


def map_figure(run: Run, number: int, grid: Grid, scale: Scale, quantity: str, most: int) -> Figure:
    """Draw a heat map of layers x updates with at most about `most` columns.

    page.js takes the logarithm, so that the page holds the numbers themselves, once.
    """
    grid = grid.take(columns(grid, most, run.events))
    trace = {
        "type": "heatmap",
        "meta": {"run": number},
        "x": grid.updates.astype(np.int32),
        "y": np.arange(1, grid.layers + 1, dtype=np.int16),
        "z": coded(grid).T.astype(np.float32),
        "colorscale": "Viridis",
        "colorbar": {**_ticks(scale), "thickness": 10, "outlinewidth": 0, "tickfont": {"size": 10}},
        "hoverongaps": False,
    }
    shapes, notes = _marks(run, BROKEN, number)
    layout = _layout("updates", "layer")
    layout["yaxis"] |= {"tickvals": layer_ticks(grid.layers), "showgrid": False, "ticklen": 3}
    layout["xaxis"] |= {"showgrid": False, "ticklen": 3}
    layout["margin"] |= {"r": 10}
    layout["plot_bgcolor"] = ABSENT
    layout["meta"] = {"updates": True, "map": True, "log": scale.is_log, "broken": BROKEN}
    layout["meta"] |= {"low": scale.low, "high": scale.high, "unit": QUANTITIES[quantity].unit}
    layout["shapes"], layout["annotations"] = shapes, notes
    return _figure([trace], layout)


def coded(grid: Grid) -> NDArray[np.float64]:
    """Return values as page.js reads them: nan where nothing was measured, infinity where what was
    measured is not finite.
    """
    values = np.where(np.isfinite(grid.values), grid.values, np.inf)
    return np.where(grid.given, values, np.nan)


def profile_figure(quantity: str, scale: Scale, deepest: int) -> Figure:
    """Return an empty figure of values by layer: page.js fills it from the heat maps."""
    layout = _layout("layer", axis(quantity))
    layout["xaxis"] |= {"tickvals": layer_ticks(deepest), "range": [0.5, deepest + 0.5]}
    layout["yaxis"] |= _vertical(scale)
    layout["hovermode"] = "x unified"
    layout["meta"] = {"profile": True}
    return _figure([], layout)


def _vertical(scale: Scale) -> dict[str, Any]:
    """Return an axis of values: a logarithmic one has ticks at 1, 2 and 5, or powers of ten."""
    if not scale.is_log:
        return {}
    decades = math.log10(scale.high / scale.low)
    step = "D2" if decades < 2.2 else math.ceil(decades / 7)
    return {"type": "log", "dtick": step, "tickformat": ".3~g"}


def _ticks(scale: Scale) -> dict[str, Any]:
    """Return ticks of a colour bar of logarithms: whole decades, else 1, 2 and 5."""
    if not scale.is_log:
        return {"tickformat": ".3~g", "exponentformat": "power"}
    low, high = math.log10(scale.low), math.log10(scale.high)
    decades = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
    if len(decades) >= 3:
        shown = list(decades)[:: -(-len(decades) // 7)]
        return {"tickvals": shown, "ticktext": [f"10<sup>{decade}</sup>" for decade in shown]}
    places = range(math.floor(low) - 1, math.ceil(high) + 1)
    values = [digit * 10.0**place for place in places for digit in (1, 2, 5)]
    inside = [value for value in values if scale.low <= value <= scale.high]
    texts = [f"{value:g}" for value in inside]
    return {"tickvals": list(map(math.log10, inside)), "ticktext": texts}


def _layout(x_title: str, y_title: str) -> dict[str, Any]:
    def axis_of(text: str) -> dict[str, Any]:
        return {**_AXIS, "title": {"text": text, "font": {"size": 12}, "standoff": 6}}

    return {
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#343a40"},
        "margin": {"l": 56, "r": 16, "t": 24, "b": 44},
        "xaxis": {**axis_of(x_title), "tickformat": ",d"},
        "yaxis": axis_of(y_title),
        "plot_bgcolor": "white",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"namelength": -1},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "#adb5bd", "activecolor": "#5c636a"},
    }


def _marks(run: Run, shade: str, number: int) -> tuple[list[Any], list[Any]]:
    """Return dashed lines where events began, and triangles above them that say what they were."""
    starts: dict[int, list[str]] = {}
    for event in run.events:
        if not event.is_end:
            finding = event.finding
            what = f"{run.name}, update {finding.started:,}: {finding.kind.label}"
            where = region_text(finding.layers)
            starts.setdefault(finding.started, []).append(plain(f"{what} {where}".strip()))
    shapes, notes = [], []
    for update, texts in sorted(starts.items())[:_MARKED]:
        line = {"color": shade, "width": 1.2, "dash": "dash"}
        place = {"xref": "x", "yref": "paper", "name": str(number)}
        ends = {"x0": update, "x1": update, "y0": 0, "y1": 1}
        shapes.append({"type": "line", "line": line, "opacity": 0.8, **place, **ends})
        mark = {"text": "▼", "font": {"color": shade, "size": 12}, "showarrow": False}
        text = {"hovertext": "<br>".join(texts), "yanchor": "bottom", "borderpad": 0}
        notes.append({"x": update, "y": 0.97, **place, **mark, **text})
    return shapes, notes


def _figure(traces: list[Any], layout: dict[str, Any]) -> Figure:
    """Return a figure as plotly has checked it, with arrays as short strings."""
    from plotly.graph_objects import Figure as Checked

    layout["template"] = "none"
    found: Figure = Checked({"data": traces, "layout": layout}).to_dict()
    return found
