"""Runs as one page of HTML that needs no network: tables, and figures by plotly, whose script is
inside.

What it says is gathered here; page.html lays it out, and page.js draws the figures.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import jinja2
from markupsafe import Markup, escape

from fairseq_deepnet.divergence.events import region_text
from fairseq_deepnet.files import shown, write_text
from fairseq_deepnet.monitoring import records
from fairseq_deepnet.monitoring.quantities import QUANTITIES
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.evaluation.scoring import METRICS
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
from fairseq_deepnet.tools.run_scores import read_scores
from fairseq_deepnet.tools.training import fallbacks

_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
"""What a browser lets the page do: it loads nothing and sends nothing."""
_VALUES: Final = 1_600_000
"""Numbers in all heat maps of a page, at four bytes each, before updates are left out."""
_COLUMNS: Final = (60, 300)
"""Updates that a heat map shows: at least, at most."""
GROUPS: Final = {
    "Gradients": ("gradient_norm", "weight_gradient_norm", "embedding_gradient_norm"),
    "Inside the layers": (
        *("branch_norm", "residual_norm", "layer_norm_input"),
        *("layer_norm_gradient", "attention_entropy", "token_rank"),
    ),
    "How far the model moves": (
        *("model_update", "step_update", "update_bound", "step_bound"),
        "parameter_update_ratio",
    ),
}
"""Quantities by what they measure; those that are in none come last."""
_METRICS: Final = {
    **{key: metric.heading for key, metric in METRICS.items()},
    "bleu_tokenised": "BLEU of tokens",
    "perplexity": "perplexity",
    "word_perplexity": "perplexity a word",
}
Cell = tuple[str, object]
"""Its class in page.css, and its text; or "run" and the place of one."""


class Plot(NamedTuple):
    """A figure, and what page.js needs to know besides."""

    figure: Figure
    caption: str = ""
    kind: str = ""
    facts: dict[str, object] = {}  # noqa: RUF012


def write(runs: Sequence[Run], file: Path, head: str = "") -> None:
    """Write the page, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, make(runs, head))


def make(runs: Sequence[Run], head: str = "") -> str:
    """Return the page: page.html, filled in."""
    from plotly.offline import get_plotlyjs

    folder = Path(__file__).parent
    names = [run.name for run in runs]
    loader = jinja2.FileSystemLoader(folder)
    environment = jinja2.Environment(
        autoescape=True, loader=loader, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters["quoted"] = lambda text: _code(r"`([^`]*)`", text)
    page = environment.get_template("page.html").render(
        policy=_POLICY,
        head=head or (", ".join(names) if len(names) <= 4 else f"{len(names)} runs"),
        names=names,
        colours=[colour_of(number) for number in range(len(runs))],
        sections=list(sections(runs)),
        monitored=records.NAME,
        most=_most_columns(runs),
        style=(folder / "page.css").read_text(encoding="utf-8"),
        script=(folder / "page.js").read_text(encoding="utf-8"),
        plotly=get_plotlyjs(),
    )
    return page.lstrip()


def _code(pattern: str, text: str) -> Markup:
    """Mark what a pattern's group holds as code."""
    return Markup(re.sub(pattern, r"<code>\1</code>", str(escape(text))))


def sections(runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Yield what the sections hold."""
    yield {"id": "overview", "title": "Runs", **overview(runs)}
    yield {"id": "events", "title": "Events", **events(runs)}
    logged = [metric for metric in LOGGED if any(metric in run.metrics for run in runs)]
    if logged:
        plots = [Plot(line_figure(runs, lines_of(runs, m), m), LABELS[m]) for m in logged]
        yield {"id": "losses", "title": "Losses", "plots": plots}
    yield {"id": "scores", "title": "Scores", **scores(runs)}
    unmonitored = [run.name for run in runs if not run.grids]
    known = [name for name in QUANTITIES if any(has(run, name) for run in runs)]
    if not known:
        yield {"id": "measured", "title": "Measured", "unmonitored": unmonitored}
    placed = {name for names in GROUPS.values() for name in names}
    others = tuple(name for name in known if name not in placed)
    most = _most_columns(runs)
    for text, names in {**GROUPS, "Other": others}.items():
        found = [quantity(runs, name, most) for name in names if name in known]
        place = {"id": text.lower().replace(" ", "-"), "title": text}
        if found:
            yield {**place, "unmonitored": unmonitored, "quantities": found}


def _most_columns(runs: Sequence[Run]) -> int:
    """Return how many updates a heat map may show, so that a page of deep runs stays small."""
    rows = sum(grid.layers for run in runs for key, grid in run.grids.items() if key.part)
    least, most = _COLUMNS
    return max(least, min(most, _VALUES // max(rows, 1)))


# A quantity: words, and figures by the parts of a layer.


def quantity(runs: Sequence[Run], name: str, most: int) -> dict[str, Any]:
    """Return what a quantity is, and its figures; the part that stands for a layer is open."""
    row = QUANTITIES[name]
    meaning = row.meaning[0].upper() + row.meaning[1:] + "."
    found = {"name": name, "title": title(name), "meaning": meaning, "unit": row.unit}
    found |= {"when": row.when, "source": row.source}
    if not is_by_layer(name):
        return {**found, "plot": Plot(line_figure(runs, lines_of(runs, name), name))}
    parts = ordered(key.part for run in runs for key in run.grids if key.quantity == name)
    made = [_part(runs, name, part, most) | {"is_open": part == main_part(parts)} for part in parts]
    return {**found, "parts": made}


def _part(runs: Sequence[Run], name: str, part: str, most: int) -> dict[str, Any]:
    """Return heat maps of a part (a row a side, a column a run), its profiles by layer, which a
    slider moves, and three layers over updates; what has one number a side, such as a final
    LayerNorm, has lines alone.
    """
    grids: dict[str, dict[int, Grid]] = {}
    for side in SIDES:
        keyed = {
            number: run.grids.get(GridKey(name, side, part)) for number, run in enumerate(runs)
        }
        if found := {number: grid for number, grid in keyed.items() if grid is not None}:
            grids[side] = found
    every = [grid for of_side in grids.values() for grid in of_side.values()]
    has_layers = any(grid.layers > 1 for grid in every)
    where = ", at the top, in the middle, at the input" * has_layers
    drawn = {side: lines_by_layer(runs, GridKey(name, side, part)) for side in grids}
    lines = [
        Plot(line_figure(runs, drawn[side], name), f"{side}: over updates{where}") for side in grids
    ]
    made: dict[str, Any] = {"name": part, "title": part_title(part), "lines": lines}
    if not has_layers:
        return made
    scale = scale_of(grid.values for grid in every)

    def heat_map(number: int, side: str) -> Plot | None:
        if number not in grids[side]:
            return None
        run, colour = runs[number], colour_of(number)
        figure = map_figure(run, number, grids[side][number], scale, name, most)
        facts = {"side": side, "run": number, "name": run.name, "colour": colour}
        return Plot(figure, f"{run.name}: {side}", "map", facts)

    shown_runs = list(dict.fromkeys(number for of_side in grids.values() for number in of_side))
    made["maps"] = [[heat_map(number, side) for number in shown_runs] for side in grids]
    made["profiles"] = []
    for side, of_side in grids.items():
        figure = profile_figure(name, scale, max(grid.layers for grid in of_side.values()))
        made["profiles"].append(Plot(figure, f"{side}: by layer", "profile", {"side": side}))
    updates = sorted({int(update) for grid in every for update in grid.updates})
    steps = (after - before for before, after in pairwise(updates))
    return made | {"updates": updates, "step": max(1, min(steps, default=1))}


# Tables: what the runs are, their events, their scores.


def _number(value: float | None, form: str = ",.2f") -> Cell:
    return "number", "" if value is None else f"{value:{form}}"


def overview(runs: Sequence[Run]) -> dict[str, Any]:
    """Return a line a run: what it is, how far it came, how well it does; a column that is empty
    for all runs is left out.
    """
    filled = [_overview_of(number, run) for number, run in enumerate(runs)]
    kept = [head for head in filled[0] if any(cells[head][1] != "" for cells in filled)]
    rows = [[cells[head] for head in kept] for cells in filled]
    return {"heads": kept, "rows": rows, "note": "Losses: the training objective, in bits a token."}


def _overview_of(number: int, run: Run) -> dict[str, Cell]:
    """Return the cells of a run, by their heading."""
    try:
        options = configs.recorded_config(run.folder).options
    except (ValueError, FileNotFoundError):
        options = {}
    layers = [options.get(f"{side}-layers") for side in SIDES]
    if not any(layers):
        measured = {key.side: grid.layers for key, grid in run.grids.items() if key.part}
        layers = [measured.get(side) for side in SIDES]
    # in what the other columns show
    changes = fallbacks.read(run.folder).changes if run.folder.is_dir() else []
    curves = run.metrics.get("loss", Curves(run.name))
    best = min((loss for _, loss in curves.valid if math.isfinite(loss)), default=None)
    updates = sorted({int(update) for grid in run.grids.values() for update in grid.updates})
    monitored = "not measured"
    if updates:
        monitored = f"{len(updates):,} updates, {updates[0]:,} to {updates[-1]:,}"
    return {
        "run": ("run", number),
        "scheme": ("short", options.get("residual-scheme", "")),
        "layers": ("short", "-".join(f"{count}L" for count in layers if count)),
        "learning rate": ("number", options.get("lr", "")),
        "warm-up": ("number", options.get("warmup-updates", "")),
        "fell back to": ("short", " ".join(map(str, changes))),
        "updates": _number(run.last_update, ",d"),
        "train loss": _number(curves.train[-1][1] if curves.train else None),
        "best valid loss": _number(best),
        "events": ("number", sum(not event.is_end for event in run.events)),
        "measured at": ("short", monitored),
        "folder": ("name", shown(run.folder)),
    }


def events(runs: Sequence[Run]) -> dict[str, Any]:
    """Return what the divergence watch noticed, with causes."""
    rows: list[list[Cell]] = []
    for number, event in ((number, e) for number, run in enumerate(runs) for e in run.events):
        finding = event.finding
        texts = [text for text in (finding.what, event.cause) if text]
        ended = [text + "." * (not text.endswith((".", "!", "?"))) for text in texts]
        prose = " ".join(text[0].upper() + text[1:] for text in ended)
        row: list[Cell] = [
            ("run", number),
            _number(finding.started, ",d"),
            _number(event.update, ",d"),
            ("", finding.kind.label + ": recovered" * event.is_end),
            ("", region_text(finding.layers)),
            ("text", _code("(--[a-z][a-z-]*[a-z])", prose)),  # options do not break over lines
        ]
        rows.append(row)
    heads = ("run", "began at update", "noticed at", "what", "where", "in words, and likely cause")
    without = "The divergence watch has recorded no event in these runs."
    return {"heads": heads, "rows": rows, "without": without}


def scores(runs: Sequence[Run]) -> dict[str, Any]:
    """Return all test scores, a line each."""
    found = [(n, score) for n, run in enumerate(runs) for score in read_scores(run.folder)]
    metrics = list(dict.fromkeys(key for _, score in found for key in score.values))
    rows: list[list[Cell]] = []
    for number, score in found:
        numbers = [_number(score.values.get(metric)) for metric in metrics]
        lines, signature = _number(score.facts.get("lines"), ",d"), score.signatures.values()
        row: list[Cell] = [("run", number), ("name", score.name), *numbers, lines]
        rows.append([*row, ("text", "; ".join(signature))])
    names = [_METRICS.get(metric, metric) for metric in metrics]
    without = "None of these runs has been scored: `bash scripts/eval_bleu.sh RUN` translates a"
    return {
        "heads": ("run", "scored", *names, "sentences", "signature"),
        "rows": rows,
        "without": f"{without} test set with one.",
    }
