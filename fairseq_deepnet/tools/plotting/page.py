"""Plots of runs as a self-contained HTML page: tables, and figures by plotly."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import jinja2
import numpy as np
from markupsafe import Markup, escape
from plotly.graph_objects import Figure
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots

from fairseq_deepnet.divergence.events import region_text
from fairseq_deepnet.files import shown
from fairseq_deepnet.monitoring.records import QUANTITIES
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.plotting.runs import SIDES, Curves, Grid, GridKey, Run
from fairseq_deepnet.tools.plotting.series import (
    SHOWN,
    Line,
    Scale,
    columns,
    has,
    is_by_layer,
    label_of,
    lines_of,
    part_title,
    parts_of,
    profiles,
    scale_of,
    title,
)
from fairseq_deepnet.tools.plotting.style import BROKEN, colour_of
from fairseq_deepnet.tools.scores import read_scores
from fairseq_deepnet.tools.training import fallbacks

_DASHES: Final = {"solid": "solid", "dashed": "dash", "dotted": "dot", "dots": "dot"}
_VALUES: Final = 1_600_000
"""Maximum number of values in all heat maps of a page, at four bytes each."""
_COLUMNS: Final = (60, 300)
"""Minimum and maximum number of updates in a heat map."""
_MARKED: Final = 20
"""Maximum number of events per run in figures; the table lists all."""
Table = tuple[list[str], list[list[Any]]]
"""Headings and rows of cells; the first cell of a row is the index of the run."""


def make(runs: Sequence[Run], head: str = "") -> str:
    """Return the page with the title `head`."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(autoescape=True, loader=loader, trim_blocks=True)
    environment.filters["code"] = _code
    most = _most_columns(runs)
    figures = {
        show: _by_layer(runs, show, most) if is_by_layer(show) else _lines(runs, show)
        for show in SHOWN
        if any(has(run, show) for run in runs)
    }
    drawn = {
        show: Markup(
            figure.to_html(
                full_html=False,
                include_plotlyjs=False,
                div_id=f"figure-{show}",
                config={"displaylogo": False},
            )
        )
        for show, figure in figures.items()
    }
    names = [run.name for run in runs]
    return environment.get_template("page.html").render(
        head=head or ", ".join(names),
        names=names,
        colours=[colour_of(number) for number in range(len(runs))],
        tables={"Runs": overview(runs), "Events": events(runs), "Scores": scores(runs)},
        unmonitored=[run.name for run in runs if not run.grids],
        figures=drawn,
        quantities=QUANTITIES,
        title=title,
        most=most,
        plotly=Markup(get_plotlyjs()),
    )


def _code(text: str) -> Markup:
    """Format words in backticks as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


# Figures.


def _most_columns(runs: Sequence[Run]) -> int:
    """Return the number of updates in a heat map that keeps the page small."""
    rows = sum(grid.layers for run in runs for key, grid in run.grids.items() if key.part)
    return int(np.clip(_VALUES // max(rows, 1), *_COLUMNS))


def _lines(runs: Sequence[Run], show: str) -> Figure:
    """Draw a logged column or a quantity without layers over updates."""
    lines = lines_of(runs, show)
    figure = Figure([_trace(line) for line in lines])
    figure.update_layout(height=400, width=900, hovermode="x unified")
    figure.update_xaxes(title="updates")
    figure.update_yaxes(title=label_of(show), type=_axis_type(lines) if show in QUANTITIES else "-")
    _mark_events(figure, [(0, number, run) for number, run in enumerate(runs)])
    return _finish(figure)


def _by_layer(runs: Sequence[Run], show: str, most: int) -> Figure:
    """Draw a row per side: a heat map per run, and profiles by layer.

    A menu selects the part of a layer.
    """
    parts = parts_of(runs, show)
    sides = [side for side in SIDES if any((show, side) == k[:2] for r in runs for k in r.grids)]
    across = len(runs) + 1
    heads = [*(f"{html.escape(run.name)}, {{}}" for run in runs), "{}, by layer"]
    figure = make_subplots(
        rows=len(sides),
        cols=across,
        subplot_titles=[head.format(side) for side in sides for head in heads],
        horizontal_spacing=0.2 / across,
        vertical_spacing=0.3 / len(sides),
    )
    drawn: list[str] = []  # the part of each trace
    lines: list[Line] = []
    for part in parts:
        keys = [GridKey(show, side, part) for side in sides]
        scale = scale_of(run.grids[key].values for run in runs for key in keys if key in run.grids)
        for row, key in enumerate(keys, 1):
            for column, run in enumerate(runs, 1):
                if (grid := run.grids.get(key)) is not None:
                    maps = _maps(grid.take(columns(grid, most, run.events)), scale)
                    figure.add_traces(maps, rows=row, cols=column)
            added = profiles(runs, key)
            lines += added
            figure.add_traces(list(map(_trace, added)), rows=row, cols=across)
        figure.data[len(drawn)].showscale = True  # of the part's first heat map
        drawn += [part] * (len(figure.data) - len(drawn))
    for trace, part in zip(figure.data, drawn, strict=True):
        trace.update(visible=part == parts[0], showlegend=False)
    choices = {part_title(part): [part == other for other in drawn] for part in parts}
    buttons = [
        {"label": label, "method": "restyle", "args": [{"visible": visible}]}
        for label, visible in choices.items()
    ]
    menu = {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.1, "yanchor": "bottom"}
    figure.update_layout(
        height=120 + 260 * len(sides),
        width=max(1100, 300 * across),
        updatemenus=[menu] if len(parts) > 1 else [],
    )
    figure.update_yaxes(title="layer", col=1)
    figure.update_yaxes(type=_axis_type(lines), title="", col=across)
    places = [(row * across + n, n, run) for row in range(len(sides)) for n, run in enumerate(runs)]
    _mark_events(figure, places)
    return _finish(figure)


def _axis_type(lines: Sequence[Line]) -> str:
    return "log" if scale_of(line.y for line in lines).is_log else "linear"


def _trace(line: Line) -> dict[str, Any]:
    is_alone = sum(map(math.isfinite, line.y)) == 1  # a line of one point is invisible
    return {
        "type": "scatter",
        "name": html.escape(line.label, quote=False),
        "x": np.asarray(line.x, dtype=np.int32),
        "y": np.asarray([y if math.isfinite(y) else math.nan for y in line.y], dtype=np.float32),
        "mode": "lines+markers" if is_alone or line.look == "dots" else "lines",
        "line": {"color": colour_of(line.run), "dash": _DASHES[line.look], "width": 2},
        "opacity": line.weight,
        "hovertemplate": "%{y:.4g}",
    }


def _maps(grid: Grid, scale: Scale) -> list[dict[str, Any]]:
    """Return a heat map, of logarithms on a logarithmic scale, and red cells for numbers that are
    not finite.
    """
    values, (low, high, is_log) = grid.values, scale
    number = "%{z:.4g}"
    bar: dict[str, Any] = {"thickness": 10}
    if is_log:
        values = np.log10(np.where(values <= 0, low, values))
        low, high = math.log10(low), math.log10(high)
        number = "10<sup>%{z:.2f}</sup>"
        bar |= {"tickprefix": "10<sup>", "ticksuffix": "</sup>"}
    common = {
        "type": "heatmap",
        "x": grid.updates.astype(np.int32),
        "y": np.arange(1, grid.layers + 1, dtype=np.int16),
        "hoverongaps": False,
        "showscale": False,
    }
    finite = np.where(np.isfinite(values), values, np.nan)
    maps = [
        {
            **common,
            "z": finite.T.astype(np.float32),
            "zmin": low,
            "zmax": high,
            "colorscale": "Viridis",
            "colorbar": bar,
            "hovertemplate": f"update %{{x:,d}}, layer %{{y}}: {number}<extra></extra>",
        }
    ]
    broken = grid.given & ~np.isfinite(grid.values)
    if broken.any():
        red = {"z": np.where(broken, 1.0, np.nan).T.astype(np.float32), "zmin": 0, "zmax": 1}
        text = "update %{x:,d}, layer %{y}: not finite<extra></extra>"
        maps.append(
            {**common, **red, "colorscale": [[0, BROKEN], [1, BROKEN]], "hovertemplate": text}
        )
    return maps


def _mark_events(figure: Figure, places: Sequence[tuple[int, int, Run]]) -> None:
    """Draw dashed lines at the start of events, with named triangles, in the colour of the run.

    Args:
        places: index of a panel, index of a run, and the run
    """
    shapes, notes = [], []
    for panel, number, run in places:
        axis, colour = str(panel + 1) if panel else "", colour_of(number)
        findings = [event.finding for event in run.events if not event.is_end]
        for finding in findings[:_MARKED]:
            start = finding.started
            place = {"xref": f"x{axis}", "yref": f"y{axis} domain"}
            look = {"color": colour, "dash": "dash", "width": 1}
            shapes.append({**place, "x0": start, "x1": start, "y0": 0, "y1": 1, "line": look})
            text = f"{run.name}, update {start:,}: {finding.kind.label}"
            text = html.escape(f"{text} {region_text(finding.layers)}".strip(), quote=False)
            mark = {"text": "▼", "font": {"color": colour}, "showarrow": False, "hovertext": text}
            notes.append({**place, **mark, "x": start, "y": 1})
    figure.update_layout(shapes=shapes, annotations=[*figure.layout.annotations, *notes])


def _finish(figure: Figure) -> Figure:
    """Set the common layout of all figures."""
    figure.update_xaxes(tickformat=",d")
    font = {"family": "system-ui, sans-serif", "size": 12}
    return figure.update_layout(template="simple_white", font=font, margin={"l": 60, "r": 20})


# Tables.


def _number(value: float | None, form: str = ",.2f") -> str:
    return "" if value is None else f"{value:{form}}"


def overview(runs: Sequence[Run]) -> Table:
    """Return a row per run with settings, progress and losses, without empty columns."""
    cells = [_overview_of(run) for run in runs]
    heads = [head for head in cells[0] if any(row[head] for row in cells)]
    return ["run", *heads], [[n, *(row[h] for h in heads)] for n, row in enumerate(cells)]


def _overview_of(run: Run) -> dict[str, str]:
    """Return the cells of a run by heading."""
    try:
        options = configs.recorded_config(run.folder).options
    except (ValueError, FileNotFoundError):
        options = {}
    changes = fallbacks.read(run.folder).changes if run.folder.is_dir() else []
    curves = run.metrics.get("loss", Curves(run.name))
    best = min((loss for _, loss in curves.valid if math.isfinite(loss)), default=None)
    return {
        "scheme": str(options.get("residual-scheme", "")),
        "layers": "-".join(str(options.get(f"{side}-layers") or "") for side in SIDES).strip("-"),
        "learning rate": str(options.get("lr", "")),
        "warm-up": str(options.get("warmup-updates", "")),
        "fell back to": " ".join(map(str, changes)),
        "updates": f"{run.last_update:,}",
        "train loss": _number(curves.train[-1][1] if curves.train else None),
        "best valid loss": _number(best),
        "events": str(sum(not event.is_end for event in run.events)),
        "folder": shown(run.folder),
    }


def events(runs: Sequence[Run]) -> Table:
    """Return the findings of the divergence watch with their causes."""
    heads = ["run", "began at update", "noticed at", "event", "place", "finding and likely cause"]
    rows: list[list[Any]] = []
    for number, run in enumerate(runs):
        for event in run.events:
            finding = event.finding
            what = finding.kind.label + (": recovered" if event.is_end else "")
            prose = ". ".join(filter(None, (finding.what, event.cause)))
            place = region_text(finding.layers)
            started, noticed = f"{finding.started:,}", f"{event.update:,}"
            rows.append([number, started, noticed, what, place, prose])
    return heads, rows


def scores(runs: Sequence[Run]) -> Table:
    """Return all test scores, one per row."""
    scored = [(n, score) for n, run in enumerate(runs) for score in read_scores(run.folder)]
    metrics = list(dict.fromkeys(key for _, score in scored for key in score.values))
    rows: list[list[Any]] = []
    for number, score in scored:
        values = [_number(score.values.get(metric)) for metric in metrics]
        rows.append([number, score.name, *values, "; ".join(score.signatures.values())])
    return ["run", "score", *metrics, "signature"], rows
