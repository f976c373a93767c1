"""Plots of runs as a self-contained HTML page with tables and plotly figures."""

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

from fairseq_deepnet.divergence.events import Event, region_text
from fairseq_deepnet.monitoring.records import QUANTITIES
from fairseq_deepnet.tools.plotting.images import BROKEN, colour_of
from fairseq_deepnet.tools.plotting.runs import (
    SHOWN,
    SIDES,
    Key,
    Run,
    Scale,
    Series,
    finite,
    label_of,
    lines_of,
    parts_of,
    scale_of,
)

_DASHES: Final = {"solid": "solid", "dashed": "dash", "dotted": "dot", "dots": "dot"}


def make(runs: Sequence[Run], head: str = "") -> str:
    """Return the page, with `head` or the runs' names as its title."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(autoescape=True, loader=loader, trim_blocks=True)
    rows = sum(series.values.shape[1] for run in runs for series in run.series.values())
    most = max(60, min(300, 1_600_000 // rows))  # updates per heat map, to limit the page's size
    figures: dict[str, dict[str, Markup]] = {}
    for show in SHOWN:
        for part in parts_of(runs, show):
            figure = _layers(runs, show, part, most) if part else _lines(runs, show)
            figure.update_xaxes(tickformat=",d")
            figure.update_layout(template="simple_white", margin={"l": 60, "r": 20})
            markup = figure.to_html(full_html=False, include_plotlyjs=False)
            figures.setdefault(show, {})[part] = Markup(markup)
    names = {run.name: colour_of(number) for number, run in enumerate(runs)}
    measured = {run.name for run in runs for key in run.series if key.quantity in QUANTITIES}
    return environment.get_template("page.html").render(
        head=head or ", ".join(names),
        runs=runs,
        names=names,
        unmonitored=[name for name in names if name not in measured],
        figures=figures,
        quantities=QUANTITIES,
        label_of=label_of,
        region_text=region_text,
        most=most,
        plotly=Markup(get_plotlyjs()),
    )


def _lines(runs: Sequence[Run], show: str) -> Figure:
    """Draw a logged column, or a quantity that is not measured by layer, as lines."""
    lines = lines_of(runs, show)
    is_log = show in QUANTITIES and scale_of(line.y for line in lines).is_log
    figure = Figure()
    for line in lines:
        figure.add_scatter(
            name=html.escape(line.label, quote=False),
            x=line.x.astype(np.int32),
            y=line.y.astype(np.float32),
            mode="lines+markers" if line.look == "dots" else "lines",
            line={"color": colour_of(line.run), "dash": _DASHES[line.look], "width": 2},
            hovertemplate="%{y:.4g}",
        )
    figure.update_layout(height=400, width=900, hovermode="x unified")
    figure.update_xaxes(title="updates")
    figure.update_yaxes(title=label_of(show), type="log" if is_log else "-")
    for number, run in enumerate(runs):
        _mark_events(figure, run, number)
    return figure


def _layers(runs: Sequence[Run], show: str, part: str, most: int) -> Figure:
    """Draw a heat map per side (row) and run (column)."""
    keys = [Key(show, side, part) for side in SIDES]
    keys = [key for key in keys if any(key in run.series for run in runs)]
    scale = scale_of(run.series[key].values for run in runs for key in keys if key in run.series)
    figure = make_subplots(
        rows=len(keys),
        cols=len(runs),
        subplot_titles=[f"{html.escape(run.name)}, {key.side}" for key in keys for run in runs],
        horizontal_spacing=0.2 / len(runs),
    )
    for row, key in enumerate(keys, 1):
        for number, run in enumerate(runs):
            if (series := run.series.get(key)) is not None:
                maps = _maps(thin(series, most, run.events), scale)
                figure.add_traces(maps, rows=row, cols=number + 1)
                # plotly's outer columns extend beyond their updates
                ends = [*series.updates[[0, -1]], *(event.started for event in run.events)]
                span = [min(*ends, max(ends) - 1), max(ends)]
                figure.update_xaxes(range=span, title="updates", row=row, col=number + 1)
    figure.update_yaxes(title="layer", col=1)
    low, high = (math.log10(end) if scale.is_log else end for end in scale[:2])
    bar = {"thickness": 10, "title": {"text": "log10" if scale.is_log else ""}}
    figure.update_layout(
        height=120 + 260 * len(keys),
        width=max(1100, 400 * len(runs)),
        coloraxis={"colorscale": "Viridis", "cmin": low, "cmax": high, "colorbar": bar},
    )
    for number, run in enumerate(runs):
        _mark_events(figure, run, number, row="all", col=number + 1)
    return figure


def thin(series: Series, most: int, events: Sequence[Event]) -> Series:
    """Select about `most` evenly spaced updates, and the updates near the first 20 events."""
    count = len(series.updates)
    even = np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)
    starts = np.searchsorted(series.updates, [event.started for event in events[:20]])
    near = (starts[:, None] + np.arange(-2, 3)).ravel().astype(np.int64)
    rows = np.unique(np.clip(np.concatenate([even, near]), 0, count - 1))
    return Series(series.updates[rows], series.values[rows])


def _maps(series: Series, scale: Scale) -> list[dict[str, Any]]:
    """Return a heat map and, if some values are not finite, another with red cells for these."""
    values = finite(series.values)
    if scale.is_log:
        values = np.log10(np.where(values <= 0, scale.low, values))
    hover = "update %{x:,d}, layer %{y}: "
    common = {
        "type": "heatmap",
        "x": series.updates.astype(np.int32),
        "y": np.arange(1, values.shape[1] + 1, dtype=np.int16),
        "hoverongaps": False,
    }
    number = ("log10 " if scale.is_log else "") + "%{z:.4g}<extra></extra>"
    cells = {"z": values.T.astype(np.float32), "hovertemplate": hover + number}
    maps = [{**common, **cells, "coloraxis": "coloraxis"}]
    if (broken := np.isinf(series.values)).any():
        red = {"colorscale": [[0, BROKEN], [1, BROKEN]], "showscale": False}
        z = np.where(broken, 1, np.nan).T.astype(np.float32)
        text = f"{hover}not finite<extra></extra>"
        maps.append({**common, **red, "z": z, "hovertemplate": text})
    return maps


def _mark_events(figure: Figure, run: Run, number: int, **panels: Any) -> None:
    """Mark the starts of the first 20 events with dashed lines and labelled triangles."""
    colour = colour_of(number)
    line = {"color": colour, "dash": "dash", "width": 1}
    look = {"text": "▼", "font": {"color": colour}, "xanchor": "center", "yanchor": "top"}
    for event in [event for event in run.events if not event.ended][:20]:
        text = f"{run.name}, update {event.started:,}: {event.kind.replace('_', ' ')}"
        text = html.escape(f"{text} {region_text(event.layers)}".strip(), quote=False)
        figure.add_vline(event.started, line=line, annotation=look | {"hovertext": text}, **panels)
