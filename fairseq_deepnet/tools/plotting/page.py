"""Runs as one page of HTML that needs no network: figures by plotly, whose script is inside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from fairseq_deepnet.files import write_text
from fairseq_deepnet.monitoring.quantities import QUANTITIES
from fairseq_deepnet.tools.plotting import interactive, sections, tables
from fairseq_deepnet.tools.plotting.lines import (
    LABELS,
    has,
    lines_of,
)
from fairseq_deepnet.tools.plotting.runs import LOGGED, Run

_HERE: Final = Path(__file__).parent
_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
"""What a browser lets the page do: it loads nothing and tells nobody anything."""
_VALUES: Final = 1_600_000
"""Numbers in all heat maps of a page, at four bytes each, before updates are left out."""
_COLUMNS: Final = (60, 300)
"""Updates that a heat map shows: at least, at most."""
GROUPS: Final = {
    "Gradients": ("gradient_norm", "weight_gradient_norm", "embedding_gradient_norm"),
    "Inside the layers": (
        "branch_norm",
        "residual_norm",
        "layer_norm_input",
        "layer_norm_gradient",
        "attention_entropy",
    ),
    "How far the model moves": (
        "model_update",
        "step_update",
        "update_bound",
        "step_bound",
        "parameter_update_ratio",
    ),
}
"""Quantities by what they tell; those that are in none come last."""


def write(runs: Sequence[Run], file: Path, head: str = "") -> None:
    """Write the page, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, make(runs, head))


def make(runs: Sequence[Run], head: str = "") -> str:
    """The page."""
    from plotly.offline import get_plotlyjs

    parts = list(_sections(runs))
    links = "".join(f'<a href="#{name}">{escape(text)}</a>' for name, text, _ in parts)
    body = "\n".join(
        f'<section id="{name}"><h2>{escape(text)}</h2>\n{content}\n</section>'
        for name, text, content in parts
    )
    head = head or _head(runs)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<link rel="icon" href="data:,">
<title>{escape(head)}</title>
<style>
{(_HERE / "page.css").read_text(encoding="utf-8")}</style>
</head><body>
<header><h1>{escape(head)}</h1>
<p class="soft">{_lead(runs)}</p></header>
<div class="bar"><div><nav aria-label="Sections">{links}</nav>
{_chips(runs)}
<label><input type="checkbox" id="log-updates"> logarithmic updates</label></div></div>
<main>
{body}
</main>
<footer>{_reading(runs)}</footer>
<script>{get_plotlyjs()}</script>
<script>
{(_HERE / "page.js").read_text(encoding="utf-8")}</script>
</body></html>
"""


def _head(runs: Sequence[Run]) -> str:
    names = [run.name for run in runs]
    return ", ".join(names) if len(names) <= 4 else f"{len(names)} runs"


def _lead(runs: Sequence[Run]) -> str:
    text = "What was logged and measured while this run trained."
    if len(runs) > 1:
        text = (
            f"What was logged and measured while these {len(runs)} runs trained, side by side."
            " A run has one colour on the whole page; click on its name above the figures to hide"
            " it."
        )
    return f"{text} Point at a figure for its numbers, drag to zoom, double-click to zoom out."


def _chips(runs: Sequence[Run]) -> str:
    return "\n".join(
        f'<button class="chip" data-run="{number}" aria-pressed="true" title="{escape(run.name)}:'
        f' show or hide">{tables.swatch(number)}{escape(run.name)}</button>'
        for number, run in enumerate(runs)
    )


def _reading(runs: Sequence[Run]) -> str:
    most = _most_columns(runs)
    return (
        "<p>Layers are counted from 1, at the input. Panels of one quantity share their colours,"
        " which reach from the 1st to the 99th percentile and are logarithmic where values span"
        " more than a decade. Red: not a finite number. Grey: not measured, such as a layer that"
        " LayerDrop left out. A cross on a line: numbers after it are not finite. A triangle with"
        " a dashed line: an event of the divergence watch.</p>"
        "<p>Of lines with more than 1,000 points the lowest and the highest of each stretch are"
        f" drawn; of a heat map with more than {most} updates {most} evenly chosen ones, and those"
        " around events. The run folders hold every number: train.log, monitor.jsonl.</p>"
    )


def _sections(runs: Sequence[Run]) -> Iterator[tuple[str, str, str]]:
    """Anchor, heading and content of each."""
    yield "overview", "Runs", tables.overview(runs)
    yield "events", "Events", tables.events(runs)
    logged = [metric for metric in LOGGED if any(metric in run.metrics for run in runs)]
    if logged:
        plots = [(interactive.line_figure(runs, lines_of(runs, m), m), LABELS[m]) for m in logged]
        grid = "".join(sections.plot(figure, label) for figure, label in plots)
        yield "losses", "Losses", f'<div class="quantity"><div class="grid">{grid}</div></div>'
    yield "scores", "Scores", tables.scores(runs)
    known = [name for name in QUANTITIES if any(has(run, name) for run in runs)]
    if not known:
        yield "measured", "Measured", tables.unmonitored(runs)
    most = _most_columns(runs)
    for text, names in _grouped(known).items():
        content = "\n".join(sections.quantity(runs, name, most) for name in names)
        missing = tables.unmonitored(runs)
        yield text.lower().replace(" ", "-"), text, missing + content


def _grouped(known: Sequence[str]) -> dict[str, list[str]]:
    grouped = {text: [n for n in names if n in known] for text, names in GROUPS.items()}
    placed = {name for names in GROUPS.values() for name in names}
    grouped["Other"] = [name for name in known if name not in placed]
    return {text: names for text, names in grouped.items() if names}


def _most_columns(runs: Sequence[Run]) -> int:
    """Updates a heat map may show, so that a page of deep runs stays small."""
    rows = sum(grid.layers for run in runs for key, grid in run.grids.items() if key.part)
    least, most = _COLUMNS
    return max(least, min(most, _VALUES // max(rows, 1)))
