"""The tables of the page: what the runs are, their events, their scores."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.divergence.events import Event, region_text
from fairseq_deepnet.files import shown
from fairseq_deepnet.monitoring import records
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.evaluation.scores import read_scores
from fairseq_deepnet.tools.plotting.interactive import colour
from fairseq_deepnet.tools.plotting.runs import SIDES, Run
from fairseq_deepnet.tools.training import fallbacks

_OPTION: Final = re.compile(r"--[a-z][a-z-]*[a-z]")
_METRICS: Final = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "bleu_tokenised": "BLEU of tokens",
    "perplexity": "perplexity",
    "word_perplexity": "perplexity a word",
}


def swatch(run: int) -> str:
    """A dot in a run's colour."""
    return f'<span class="swatch" style="background:{colour(run)}"></span>'


def sentence(text: str) -> str:
    """A quantity's meaning as HTML: a capital, a full stop, code between backquotes."""
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


def _name(runs: Sequence[Run], run: Run) -> str:
    return f'<td class="name">{swatch(runs.index(run))}{escape(run.name)}</td>'


def overview(runs: Sequence[Run]) -> str:
    """A line a run: what it is, how far it came, how well it does."""
    columns: dict[str, Callable[[Run], str]] = {
        "run": lambda run: _name(runs, run),
        "scheme": lambda run: _cell(_option(run, "residual-scheme"), "short"),
        "layers": lambda run: _cell(_depth(run), "short"),
        "learning rate": lambda run: _cell(_option(run, "lr"), "number"),
        "warm-up": lambda run: _cell(_option(run, "warmup-updates"), "number"),
        "fell back to": lambda run: _cell(_fallen_back(run), "short"),
        "updates": lambda run: _number(run.last_update, ",d"),
        "train loss": lambda run: _number(_last(run, "train")),
        "best valid loss": lambda run: _number(_best(run)),
        "events": lambda run: _cell(sum(not event.is_end for event in run.events), "number"),
        "measured at": lambda run: _cell(_monitored(run), "short"),
        "folder": lambda run: _cell(shown(run.folder), "name"),
    }
    filled = [[cell(run) for cell in columns.values()] for run in runs]
    empty = {f'<td class="{kind}"></td>' for kind in ("number", "short")}
    kept = [n for n in range(len(columns)) if any(row[n] not in empty for row in filled)]
    heads = [list(columns)[n] for n in kept]
    note = '<p class="note">Losses: the training objective, in bits a token.</p>'
    return _table(heads, [[row[n] for n in kept] for row in filled]) + note


def _config(folder: Path) -> dict[str, Any]:
    file = folder / "config.yaml"
    try:
        return dict(configs.load_config(str(file)).options) if file.is_file() else {}
    except ValueError:
        return {}


def _option(run: Run, name: str) -> str:
    return str(_config(run.folder).get(name, ""))


def _fallen_back(run: Run) -> str:
    """What fallbacks have changed in the options that the other columns show."""
    return fallbacks.shown(fallbacks.read(run.folder).overrides) if run.folder.is_dir() else ""


def _depth(run: Run) -> str:
    """ "18L-18L", as configured or as measured."""
    options = _config(run.folder)
    told = [options.get(f"{side}-layers") for side in SIDES]
    if not any(told):
        depths = {key.side: grid.layers for key, grid in run.grids.items() if key.part}
        told = [depths.get(side) for side in SIDES]
    return "-".join(f"{layers}L" for layers in told if layers)


def _last(run: Run, kind: str) -> float | None:
    curves = run.metrics.get("loss")
    points = getattr(curves, kind) if curves is not None else []
    return points[-1][1] if points else None


def _best(run: Run) -> float | None:
    curves = run.metrics.get("loss")
    losses = [loss for _, loss in curves.valid if math.isfinite(loss)] if curves else []
    return min(losses, default=None)


def _monitored(run: Run) -> str:
    updates = sorted({int(update) for grid in run.grids.values() for update in grid.updates})
    if not updates:
        return "not measured"
    return f"{len(updates):,} updates, {updates[0]:,} to {updates[-1]:,}"


def events(runs: Sequence[Run]) -> str:
    """What the divergence watch noticed, with causes."""
    found = [(run, event) for run in runs for event in run.events]
    if not found:
        return "<p>The divergence watch has recorded no event in these runs.</p>"
    rows = [
        [
            _name(runs, run),
            _number(event.finding.started, ",d"),
            _number(event.update, ",d"),
            _cell(_kind(event)),
            _cell(region_text(event.finding.layers)),
            _prose(" ".join(map(_full, filter(None, (event.finding.what, event.cause))))),
        ]
        for run, event in found
    ]
    heads = ("run", "began at update", "noticed at", "what", "where", "in words, and likely cause")
    return _table(heads, rows)


def _kind(event: Event) -> str:
    words = event.finding.kind.words
    return f"{words}: recovered" if event.is_end else words


def _prose(text: str) -> str:
    """A cell of sentences, in which options do not break over lines."""
    marked = _OPTION.sub(r"<code>\g<0></code>", escape(text))
    return f'<td class="text">{marked}</td>'


def _full(text: str) -> str:
    """A sentence with its capital and its full stop."""
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def scores(runs: Sequence[Run]) -> str:
    """All test scores, a line each."""
    found = [(run, score) for run in runs for score in read_scores(run.folder)]
    if not found:
        return (
            "<p>None of these runs has been scored: <code>bash scripts/eval_bleu.sh RUN</code>"
            " translates a test set with one.</p>"
        )
    metrics = list(dict.fromkeys(key for _, score in found for key in score.values))
    rows = [
        [
            _name(runs, run),
            _cell(score.name, "name"),
            *(_number(score.values.get(metric)) for metric in metrics),
            _number(score.facts.get("lines"), ",d"),
            _cell("; ".join(score.signatures.values()), "text"),
        ]
        for run, score in found
    ]
    names = [_METRICS.get(metric, metric) for metric in metrics]
    return _table(("run", "scored", *names, "sentences", "signature"), rows)


def unmonitored(runs: Sequence[Run]) -> str:
    """Which runs have no measurements, and how to get them; empty where all have."""
    missing = [run for run in runs if not run.grids]
    if not missing:
        return ""
    names = ", ".join(escape(run.name) for run in missing)
    return (
        f'<p class="warning">Nothing was measured in {names}: there is no {records.NAME}. Train'
        " with <code>--monitor-interval 100</code> to have one.</p>"
    )
