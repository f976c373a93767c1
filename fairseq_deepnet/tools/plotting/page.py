"""Runs as one page of HTML that needs no network: tables, and figures by plotly, whose script is
inside.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import Any, Final

from fairseq_deepnet.divergence.events import region_text
from fairseq_deepnet.files import shown, write_text
from fairseq_deepnet.monitoring import records
from fairseq_deepnet.monitoring.quantities import QUANTITIES
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.evaluation.run_scores import read_scores
from fairseq_deepnet.tools.plotting.curves import Curves
from fairseq_deepnet.tools.plotting.interactive import (
    Figure,
    line_figure,
    map_figure,
    profile_figure,
)
from fairseq_deepnet.tools.plotting.runs import LOGGED, SIDES, Grid, GridKey, Run
from fairseq_deepnet.tools.plotting.series import (
    LABELS,
    Scale,
    has,
    is_by_layer,
    lines_by_layer,
    lines_of,
    main_part,
    ordered,
    part_title,
    scale_of,
    title,
)
from fairseq_deepnet.tools.plotting.style import colour_of
from fairseq_deepnet.tools.training import fallbacks

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
_OPTION: Final = re.compile(r"--[a-z][a-z-]*[a-z]")
_METRICS: Final = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "bleu_tokenised": "BLEU of tokens",
    "perplexity": "perplexity",
    "word_perplexity": "perplexity a word",
}
Panel = tuple[int, Run, str, Grid]
"""A run's place, the run, a side, and what was measured there."""
_ABSENT: Final = '<figure class="absent"></figure>'
"""Keeps the place of a run that has no such side."""


def write(runs: Sequence[Run], file: Path, head: str = "") -> None:
    """Write the page, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, make(runs, head))


def make(runs: Sequence[Run], head: str = "") -> str:
    """Return the page: page.html, filled in."""
    from plotly.offline import get_plotlyjs

    parts = list(_sections(runs))
    names = [run.name for run in runs]
    head = head or (", ".join(names) if len(names) <= 4 else f"{len(names)} runs")
    lead = "What was logged and measured while this run trained."
    if len(runs) > 1:
        lead = (
            f"What was logged and measured while these {len(runs)} runs trained, side by side."
            " A run has one colour on the whole page; click on its name above the figures to hide"
            " it."
        )
    return Template(_file("page.html")).substitute(
        policy=_POLICY,
        head=escape(head),
        lead=lead,
        style=_file("page.css"),
        links="".join(f'<a href="#{name}">{escape(text)}</a>' for name, text, _ in parts),
        runs="\n".join(
            f'<button class="chip" data-run="{number}" aria-pressed="true" title="{escape(name)}:'
            f' show or hide">{swatch(number)}{escape(name)}</button>'
            for number, name in enumerate(names)
        ),
        sections="\n".join(
            f'<section id="{name}"><h2>{escape(text)}</h2>\n{content}\n</section>'
            for name, text, content in parts
        ),
        most=_most_columns(runs),
        plotly=get_plotlyjs(),
        script=_file("page.js"),
    )


def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _sections(runs: Sequence[Run]) -> Iterator[tuple[str, str, str]]:
    """Anchor, heading and content of each."""
    yield "overview", "Runs", overview(runs)
    yield "events", "Events", events(runs)
    logged = [metric for metric in LOGGED if any(metric in run.metrics for run in runs)]
    if logged:
        plots = [(line_figure(runs, lines_of(runs, m), m), LABELS[m]) for m in logged]
        grid = "".join(plot(figure, label) for figure, label in plots)
        yield "losses", "Losses", f'<div class="quantity"><div class="grid">{grid}</div></div>'
    yield "scores", "Scores", scores(runs)
    known = [name for name in QUANTITIES if any(has(run, name) for run in runs)]
    if not known:
        yield "measured", "Measured", unmonitored(runs)
    placed = {name for names in GROUPS.values() for name in names}
    others = tuple(name for name in known if name not in placed)
    most = _most_columns(runs)
    for text, names in {**GROUPS, "Other": others}.items():
        content = "\n".join(quantity(runs, name, most) for name in names if name in known)
        if content:
            yield text.lower().replace(" ", "-"), text, unmonitored(runs) + content


def _most_columns(runs: Sequence[Run]) -> int:
    """Updates a heat map may show, so that a page of deep runs stays small."""
    rows = sum(grid.layers for run in runs for key, grid in run.grids.items() if key.part)
    least, most = _COLUMNS
    return max(least, min(most, _VALUES // max(rows, 1)))


# A section for each quantity: words, tabs of its parts, figures.


def quantity(runs: Sequence[Run], name: str, most: int) -> str:
    """Return the section of a quantity: what it is, and its figures."""
    row = QUANTITIES[name]
    source = f"<span><b>paper</b> {escape(row.source)}</span>" if row.source else ""
    inside = (
        _parts(runs, name, most)
        if is_by_layer(name)
        else plot(line_figure(runs, lines_of(runs, name), name), "")
    )
    return f"""<div class="quantity" id="{name}">
<h3>{escape(title(name))}<code>{name}</code></h3>
<p>{sentence(row.meaning)}</p>
<div class="facts"><span><b>unit</b> {escape(row.unit)}</span>
<span><b>taken</b> {escape(row.when)}</span>{source}</div>
{inside}
</div>"""


def _parts(runs: Sequence[Run], name: str, most: int) -> str:
    """Tabs of a quantity's parts; the one that stands for a layer is open."""
    parts = ordered(key.part for run in runs for key in run.grids if key.quantity == name)
    first = main_part(parts)
    tabs = "".join(
        f'<button data-part="{escape(part)}" aria-pressed="{str(part == first).lower()}"'
        f' title="{escape(part)}">{escape(part_title(part))}</button>'
        for part in parts
    )
    shown = "\n".join(
        f'<div class="part" data-part="{escape(part)}"{"" if part == first else " hidden"}>'
        f"{_part(runs, name, part, most)}</div>"
        for part in parts
    )
    return f'<div class="tabs" role="group" aria-label="part of a layer">{tabs}</div>{shown}'


def _part(runs: Sequence[Run], name: str, part: str, most: int) -> str:
    """Heat maps of a part, its profiles by layer with a slider, and three layers over updates; what
    has one number a side, such as a final LayerNorm, has lines alone.
    """
    panels = [
        (number, run, side, run.grids[GridKey(name, side, part)])
        for side in SIDES
        for number, run in enumerate(runs)
        if GridKey(name, side, part) in run.grids
    ]
    sides = list(dict.fromkeys(side for _, _, side, _ in panels))
    drawn = {side: lines_by_layer(runs, GridKey(name, side, part)) for side in sides}
    has_layers = any(grid.layers > 1 for *_, grid in panels)
    told = ", at the top, in the middle, at the input" if has_layers else ""
    lines = "".join(
        plot(line_figure(runs, drawn[side], name), f"{side}: over updates{told}") for side in sides
    )
    above = _by_layer(panels, sides, name, most) if has_layers else ""
    return f'{above}<div class="grid">{lines}</div>'


def _by_layer(panels: Sequence[Panel], sides: Sequence[str], name: str, most: int) -> str:
    """A row of heat maps a side, a column a run; below them a slider and the profiles it moves."""
    scale = scale_of(grid.values for *_, grid in panels)
    shown = list(dict.fromkeys(number for number, *_ in panels))
    maps = {(panel[0], panel[2]): _map(panel, scale, name, most) for panel in panels}
    rows = ["".join(maps.get((number, side), _ABSENT) for number in shown) for side in sides]
    profiles = []
    for side in sides:
        deepest = max(grid.layers for *_, where, grid in panels if where == side)
        figure = profile_figure(name, scale, deepest)
        profiles.append(plot(figure, f"{side}: by layer", "profile", {"side": side}))
    updates = sorted({int(update) for *_, grid in panels for update in grid.updates})
    return "\n".join(
        [
            *(f'<div class="grid maps">{row}</div>' for row in rows),
            _slider(updates),
            f'<div class="grid">{"".join(profiles)}</div>',
        ]
    )


def _map(panel: Panel, scale: Scale, name: str, most: int) -> str:
    number, run, side, grid = panel
    figure = map_figure(run, number, grid, scale, name, most)
    facts = {"side": side, "run": number, "name": run.name}
    facts["colour"] = colour_of(number)
    return plot(figure, f"{run.name}: {side}", "map", facts)


def _slider(updates: Sequence[int]) -> str:
    first, last = updates[0], updates[-1]
    step = max(1, min((after - before for before, after in pairwise(updates)), default=1))
    return (
        f'<label class="slider">By layer at update <output>{last:,}</output><input type="range"'
        f' min="{first}" max="{last}" value="{last}" step="{step}">'
        '<span class="note">solid: at this update; dotted: the first one</span></label>'
    )


def plot(figure: Figure, caption: str, kind: str = "", facts: dict[str, Any] | None = None) -> str:
    """Return the place of a figure, and what page.js draws there."""
    data = "".join(f' data-{key}="{escape(str(item))}"' for key, item in (facts or {}).items())
    above = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return (
        f'<figure>{above}<div class="{f"plot {kind}".strip()}"{data}></div>'
        f'<script type="application/json">{coded(figure)}</script></figure>\n'
    )


def coded(content: Any) -> str:
    """JSON that can stand in a script element, whatever names it holds."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


# Tables: what the runs are, their events, their scores.


def swatch(run: int) -> str:
    """Return a dot in a run's colour."""
    return f'<span class="swatch" style="background:{colour_of(run)}"></span>'


def sentence(text: str) -> str:
    """Return a quantity's meaning as HTML: a capital, a full stop, code between backquotes."""
    pieces = escape(text[0].upper() + text[1:] + ".").split("`")
    return "".join(
        f"<code>{piece}</code>" if number % 2 else piece for number, piece in enumerate(pieces)
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already."""
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = "\n".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    rows_of_table = f"<thead><tr>{top}</tr></thead><tbody>\n{body}\n</tbody>"
    return f'<div class="scroll"><table>{rows_of_table}</table></div>'


def _cell(content: object, kind: str = "") -> str:
    marked = f' class="{kind}"' if kind else ""
    return f"<td{marked}>{escape(str(content))}</td>"


def _number(value: float | None, form: str = ",.2f") -> str:
    return _cell("" if value is None else f"{value:{form}}", "number")


def _name(number: int, run: Run) -> str:
    return f'<td class="name">{swatch(number)}{escape(run.name)}</td>'


def overview(runs: Sequence[Run]) -> str:
    """A line a run: what it is, how far it came, how well it does; a column that is empty for all
    runs is left out.
    """
    filled = [_overview_of(number, run) for number, run in enumerate(runs)]
    empty = {f'<td class="{kind}"></td>' for kind in ("number", "short")}
    kept = [head for head in filled[0] if any(cells[head] not in empty for cells in filled)]
    note = '<p class="note">Losses: the training objective, in bits a token.</p>'
    return _table(kept, [[cells[head] for head in kept] for cells in filled]) + note


def _overview_of(number: int, run: Run) -> dict[str, str]:
    """The cells of a run, by their heading."""
    file = run.folder / "config.yaml"
    try:
        options = configs.load_config(str(file)).options if file.is_file() else {}
    except ValueError:
        options = {}
    layers = [options.get(f"{side}-layers") for side in SIDES]
    if not any(layers):
        measured = {key.side: grid.layers for key, grid in run.grids.items() if key.part}
        layers = [measured.get(side) for side in SIDES]
    # in what the other columns show
    changes = fallbacks.read(run.folder).overrides if run.folder.is_dir() else {}
    curves = run.metrics.get("loss", Curves(run.name))
    best = min((loss for _, loss in curves.valid if math.isfinite(loss)), default=None)
    updates = sorted({int(update) for grid in run.grids.values() for update in grid.updates})
    monitored = "not measured"
    if updates:
        monitored = f"{len(updates):,} updates, {updates[0]:,} to {updates[-1]:,}"
    return {
        "run": _name(number, run),
        "scheme": _cell(options.get("residual-scheme", ""), "short"),
        "layers": _cell("-".join(f"{count}L" for count in layers if count), "short"),
        "learning rate": _cell(options.get("lr", ""), "number"),
        "warm-up": _cell(options.get("warmup-updates", ""), "number"),
        "fell back to": _cell(fallbacks.shown(changes), "short"),
        "updates": _number(run.last_update, ",d"),
        "train loss": _number(curves.train[-1][1] if curves.train else None),
        "best valid loss": _number(best),
        "events": _cell(sum(not event.is_end for event in run.events), "number"),
        "measured at": _cell(monitored, "short"),
        "folder": _cell(shown(run.folder), "name"),
    }


def events(runs: Sequence[Run]) -> str:
    """Return what the divergence watch noticed, with causes."""
    found = [(n, run, event) for n, run in enumerate(runs) for event in run.events]
    if not found:
        return "<p>The divergence watch has recorded no event in these runs.</p>"
    rows = [
        [
            _name(number, run),
            _number(event.finding.started, ",d"),
            _number(event.update, ",d"),
            _cell(event.finding.kind.words + (": recovered" if event.is_end else "")),
            _cell(region_text(event.finding.layers)),
            _prose(" ".join(map(_full, filter(None, (event.finding.what, event.cause))))),
        ]
        for number, run, event in found
    ]
    heads = ("run", "began at update", "noticed at", "what", "where", "in words, and likely cause")
    return _table(heads, rows)


def _prose(text: str) -> str:
    """A cell of sentences, in which options do not break over lines."""
    marked = _OPTION.sub(r"<code>\g<0></code>", escape(text))
    return f'<td class="text">{marked}</td>'


def _full(text: str) -> str:
    """A sentence with its capital and its full stop."""
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def scores(runs: Sequence[Run]) -> str:
    """Return all test scores, a line each."""
    found = [(n, run, s) for n, run in enumerate(runs) for s in read_scores(run.folder)]
    if not found:
        return (
            "<p>None of these runs has been scored: <code>bash scripts/eval_bleu.sh RUN</code>"
            " translates a test set with one.</p>"
        )
    metrics = list(dict.fromkeys(key for *_, score in found for key in score.values))
    rows = [
        [
            _name(number, run),
            _cell(score.name, "name"),
            *(_number(score.values.get(metric)) for metric in metrics),
            _number(score.facts.get("lines"), ",d"),
            _cell("; ".join(score.signatures.values()), "text"),
        ]
        for number, run, score in found
    ]
    names = [_METRICS.get(metric, metric) for metric in metrics]
    return _table(("run", "scored", *names, "sentences", "signature"), rows)


def unmonitored(runs: Sequence[Run]) -> str:
    """Return which runs have no measurements, and how to get them; empty where all have."""
    missing = [run for run in runs if not run.grids]
    if not missing:
        return ""
    names = ", ".join(escape(run.name) for run in missing)
    return (
        f'<p class="warning">Nothing was measured in {names}: there is no {records.NAME}. Train'
        " with <code>--monitor-interval 100</code> to have one.</p>"
    )
