"""The sections of the page that show one quantity each: words, tabs of its parts, figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import Any, Final

from fairseq_deepnet.monitoring.quantities import QUANTITIES
from fairseq_deepnet.tools.plotting import interactive, tables
from fairseq_deepnet.tools.plotting.interactive import Figure
from fairseq_deepnet.tools.plotting.lines import is_by_layer, lines_by_layer, lines_of
from fairseq_deepnet.tools.plotting.runs import SIDES, Grid, Key, Run
from fairseq_deepnet.tools.plotting.scales import (
    Scale,
    main_part,
    ordered,
    part_title,
    scale_of,
    title,
)

Panel = tuple[int, Run, str, Grid]
"""A run's place, the run, a side, and what was measured there."""
_ABSENT: Final = '<figure class="absent"></figure>'
"""Keeps the place of a run that has no such side."""


def quantity(runs: Sequence[Run], name: str, most: int) -> str:
    """A quantity: what it is, and its figures."""
    row = QUANTITIES[name]
    source = f"<span><b>paper</b> {escape(row.source)}</span>" if row.source else ""
    inside = (
        _parts(runs, name, most)
        if is_by_layer(name)
        else plot(interactive.line_figure(runs, lines_of(runs, name), name), "")
    )
    return f"""<div class="quantity" id="{name}">
<h3>{escape(title(name))}<code>{name}</code></h3>
<p>{tables.sentence(row.meaning)}</p>
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
        (number, run, side, run.grids[Key(name, side, part)])
        for side in SIDES
        for number, run in enumerate(runs)
        if Key(name, side, part) in run.grids
    ]
    sides = list(dict.fromkeys(side for _, _, side, _ in panels))
    drawn = {side: lines_by_layer(runs, Key(name, side, part)) for side in sides}
    has_layers = any(grid.layers > 1 for *_, grid in panels)
    told = ", at the top, in the middle, at the input" if has_layers else ""
    lines = "".join(
        plot(interactive.line_figure(runs, drawn[side], name), f"{side}: over updates{told}")
        for side in sides
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
        figure = interactive.profile_figure(name, scale, deepest)
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
    figure = interactive.map_figure(run, number, grid, scale, name, most)
    facts = {"side": side, "run": number, "name": run.name}
    facts["colour"] = interactive.colour(number)
    return plot(figure, f"{run.name}: {side}", "map", facts)


def _slider(updates: Sequence[int]) -> str:
    first, last = updates[0], updates[-1]
    return (
        f'<label class="slider">By layer at update <output>{last:,}</output><input type="range"'
        f' min="{first}" max="{last}" value="{last}" step="{_step(updates)}">'
        '<span class="note">solid: at this update; dotted: the first one</span></label>'
    )


def _step(updates: Sequence[int]) -> int:
    gaps = [after - before for before, after in pairwise(updates)]
    return max(1, min(gaps, default=1))


def plot(figure: Figure, caption: str, kind: str = "", facts: dict[str, Any] | None = None) -> str:
    """The place of a figure, and what page.js draws there."""
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
