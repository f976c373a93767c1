"""Plots of runs as a self-contained HTML page: tables, and figures by plotly."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import jinja2
import numpy as np
from markupsafe import Markup
from plotly.graph_objects import Figure
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots
from tabulate import tabulate

from fairseq_deepnet.divergence.events import region_text
from fairseq_deepnet.files import shown
from fairseq_deepnet.monitoring.records import QUANTITIES
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.plotting.images import BROKEN, colour_of
from fairseq_deepnet.tools.plotting.runs import SIDES, Curves, Grid, GridKey, Run
from fairseq_deepnet.tools.plotting.series import (
    SHOWN,
    Line,
    Scale,
    has,
    is_by_layer,
    label_of,
    lines_of,
    parts_of,
    profiles,
    scale_of,
    title,
)
from fairseq_deepnet.tools.scores import read_scores
from fairseq_deepnet.tools.training import fallbacks

_DASHES: Final = {"solid": "solid", "dashed": "dash", "dotted": "dot", "dots": "dot"}


def make(runs: Sequence[Run], head: str = "") -> str:
    """Return the page with the title `head`."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(autoescape=True, loader=loader, trim_blocks=True)
    rows = sum(grid.layers for run in runs for key, grid in run.grids.items() if key.part)
    most = max(60, min(300, 1_600_000 // max(rows, 1)))  # updates, so that the page stays small
    figures = {}
    for show in SHOWN:
        if any(has(run, show) for run in runs):
            figure = _layers(runs, show, most) if is_by_layer(show) else _lines(runs, show)
            figure.update_xaxes(tickformat=",d")
            figure.update_layout(template="simple_white", margin={"l": 60, "r": 20})
            place = {"full_html": False, "include_plotlyjs": False, "div_id": f"figure-{show}"}
            figures[show] = Markup(figure.to_html(**place))
    names = [run.name for run in runs]
    tables = {"Runs": overview(runs), "Events": events(runs), "Scores": scores(runs)}
    return environment.get_template("page.html").render(
        head=head or ", ".join(names),
        names={name: colour_of(number) for number, name in enumerate(names)},
        tables={
            name: Markup(tabulate(table, headers="keys", tablefmt="html", disable_numparse=True))
            for name, table in tables.items()
            if table
        },
        unmonitored=[run.name for run in runs if not run.grids],
        figures=figures,
        quantities=QUANTITIES,
        title=title,
        most=most,
        plotly=Markup(get_plotlyjs()),
    )


def _lines(runs: Sequence[Run], show: str) -> Figure:
    """Draw a logged column or a quantity without layers over updates."""
    lines = lines_of(runs, show)
    is_log = show in QUANTITIES and scale_of(line.y for line in lines).is_log
    figure = Figure([_trace(line) for line in lines])
    figure.update_layout(height=400, width=900, hovermode="x unified")
    figure.update_xaxes(title="updates")
    figure.update_yaxes(title=label_of(show), type="log" if is_log else "-")
    for number, run in enumerate(runs):
        _mark_events(figure, run, number)
    return figure


def _layers(runs: Sequence[Run], show: str, most: int) -> Figure:
    """Draw a row per side: a heat map per run, and profiles by layer.

    A menu selects the part of a layer.
    """
    sides = [side for side in SIDES if any((show, side) == k[:2] for r in runs for k in r.grids)]
    across = len(runs) + 1
    heads = [*(f"{html.escape(run.name)}, {{}}" for run in runs), "{}, by layer"]
    figure = make_subplots(
        rows=len(sides),
        cols=across,
        subplot_titles=[head.format(side) for side in sides for head in heads],
        horizontal_spacing=0.2 / across,
    )
    parts: list[str] = []  # of each trace
    colours: dict[str, dict[str, Any]] = {}
    for part in parts_of(runs, show):
        keys = [GridKey(show, side, part) for side in sides]
        scale = scale_of(run.grids[key].values for run in runs for key in keys if key in run.grids)
        colours[part] = _colours(scale)
        for row, key in enumerate(keys, 1):
            for number, run in enumerate(runs):
                if (grid := run.grids.get(key)) is not None:
                    maps = _maps(grid.thin(most, run.events), scale)
                    figure.add_traces(maps, rows=row, cols=number + 1)
                    added = [_trace(line) for line in profiles(run, number, key)]
                    figure.add_traces(added, rows=row, cols=across)
        figure.update_yaxes(type="log" if scale.is_log else "linear", col=across)
        parts += [part] * (len(figure.data) - len(parts))
    for trace, part in zip(figure.data, parts, strict=True):
        trace.update(visible=part == parts[0], showlegend=False)
    buttons = [
        {
            "label": part,
            "method": "update",
            "args": [{"visible": [part == p for p in parts]}, {"coloraxis": axis}],
        }
        for part, axis in colours.items()
    ]
    menu = {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.1, "yanchor": "bottom"}
    figure.update_layout(
        height=120 + 260 * len(sides),
        width=max(1100, 300 * across),
        coloraxis=colours[parts[0]],
        updatemenus=[menu],
    )
    figure.update_yaxes(title="layer", col=1)
    for number, run in enumerate(runs):
        _mark_events(figure, run, number, row="all", col=number + 1)
    return figure


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


def _colours(scale: Scale) -> dict[str, Any]:
    """Return the colour axis of heat maps, in decimal logarithms if the scale is logarithmic."""
    low, high = (math.log10(end) if scale.is_log else end for end in scale[:2])
    bar = {"thickness": 10, "title": {"text": "log10" if scale.is_log else ""}}
    return {"colorscale": "Viridis", "cmin": low, "cmax": high, "colorbar": bar}


def _maps(grid: Grid, scale: Scale) -> list[dict[str, Any]]:
    """Return a heat map on the colour axis, and red cells for numbers that are not finite."""
    values = grid.values
    if scale.is_log:
        values = np.log10(np.where(values <= 0, scale.low, values))
    finite = np.isfinite(grid.values)
    hover = "update %{x:,d}, layer %{y}: "
    common = {
        "type": "heatmap",
        "x": grid.updates.astype(np.int32),
        "y": np.arange(1, grid.layers + 1, dtype=np.int16),
        "hoverongaps": False,
    }
    red = {"colorscale": [[0, BROKEN], [1, BROKEN]], "showscale": False}
    cells = np.where(finite, values, np.nan).T.astype(np.float32)
    number = ("log10 " if scale.is_log else "") + "%{z:.4g}<extra></extra>"
    maps = [{**common, "z": cells, "coloraxis": "coloraxis", "hovertemplate": hover + number}]
    if (broken := grid.given & ~finite).any():
        cells = np.where(broken, 1, np.nan).T.astype(np.float32)
        text = f"{hover}not finite<extra></extra>"
        maps.append({**common, **red, "z": cells, "hovertemplate": text})
    return maps


def _mark_events(figure: Figure, run: Run, number: int, **panels: Any) -> None:
    """Draw dashed lines at the start of the first 20 events, with named triangles."""
    colour = colour_of(number)
    for finding in [event.finding for event in run.events if not event.is_end][:20]:
        text = f"{run.name}, update {finding.started:,}: {finding.kind.label}"
        text = html.escape(f"{text} {region_text(finding.layers)}".strip(), quote=False)
        look = {"font": {"color": colour}, "xanchor": "center", "yanchor": "top"}
        line = {"color": colour, "dash": "dash", "width": 1}
        figure.add_vline(
            finding.started,
            line=line,
            annotation={"text": "▼", "hovertext": text, **look},
            **panels,
        )


def overview(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Return a row per run with settings, progress and losses, without empty cells."""
    table = []
    for run in runs:
        try:
            options = configs.recorded_config(run.folder).options
        except (ValueError, FileNotFoundError):
            options = {}
        changes = fallbacks.read(run.folder).changes if run.folder.is_dir() else []
        curves = run.metrics.get("loss", Curves())
        best = min((loss for _, loss in curves.valid if math.isfinite(loss)), default=None)
        layers = [str(options.get(f"{side}-layers") or "") for side in SIDES]
        row = {
            "run": run.name,
            "scheme": str(options.get("residual-scheme", "")),
            "layers": "-".join(layers).strip("-"),
            "learning rate": str(options.get("lr", "")),
            "warm-up": str(options.get("warmup-updates", "")),
            "fell back to": " ".join(map(str, changes)),
            "updates": f"{max((u for u, _ in curves.train + curves.valid), default=0):,}",
            "train loss": f"{curves.train[-1][1]:.2f}" if curves.train else "",
            "best valid loss": "" if best is None else f"{best:.2f}",
            "events": str(sum(not event.is_end for event in run.events)),
            "folder": shown(run.folder),
        }
        table.append({name: cell for name, cell in row.items() if cell})
    return table


def events(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Return the findings of the divergence watch with their causes."""
    return [
        {
            "run": run.name,
            "began at update": f"{event.finding.started:,}",
            "noticed at": f"{event.update:,}",
            "event": event.finding.kind.label + (": recovered" if event.is_end else ""),
            "place": region_text(event.finding.layers),
            "finding and likely cause": ". ".join(filter(None, (event.finding.what, event.cause))),
        }
        for run in runs
        for event in run.events
    ]


def scores(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Return all test scores, one per row."""
    return [
        {
            "run": run.name,
            "score": score.name,
            **{metric: f"{value:,.2f}" for metric, value in score.values.items()},
            "signature": "; ".join(score.signatures.values()),
        }
        for run in runs
        for score in read_scores(run.folder)
    ]
