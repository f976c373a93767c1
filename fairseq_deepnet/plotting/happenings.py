"""What happened to a run beside its losses: events of the divergence watch, and test scores."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.monitoring import records

EVENTS: Final = "divergence.jsonl"
_KINDS: Final = {
    "not_finite": "not finite",
    "loss_spike": "loss spike",
    "stalled": "stalled",
    "vanished_gradients": "vanished gradients",
    "loss_scale": "loss scale collapses",
}


@dataclass(frozen=True)
class Event:
    """What the divergence watch noticed.

    Arguments:
        update: at which it was noticed
        started: where it began, as far as that is known
        kind: in words
        where: the layers concerned; empty where none are named
        what, cause: a sentence each; may be empty
        is_end: it tells that an earlier trouble is over
    """

    update: int
    started: int
    kind: str
    where: str = ""
    what: str = ""
    cause: str = ""
    is_end: bool = False


def read_events(file: Path) -> list[Event]:
    """The events of a run, by where they began; a line without an update is passed over."""
    if not file.is_file():
        return []
    return sorted(map(_event, records.read(file)), key=lambda event: event.started)


def _event(line: records.Record) -> Event:
    started, kind = line.get("started"), str(line.get("kind", "event"))
    is_end = line.get("ended") is True
    has_start = isinstance(started, int | float) and not is_end
    return Event(
        update=line["update"],
        started=int(started) if has_start and started is not None else line["update"],
        kind=_KINDS.get(kind, kind.replace("_", " ")),
        where=_where(line),
        what=_words(line.get("what")),
        cause=_words(line.get("cause")),
        is_end=is_end,
    )


def _where(line: records.Record) -> str:
    """ "decoder layers 1 to 13 of 18", or what else a line says of the place."""
    layers = line.get("layers")
    if isinstance(layers, dict):
        return "; ".join(_region(side, region) for side, region in layers.items())
    pieces = (_words(line.get(name)) for name in ("side", "part", "layer", "where"))
    return " ".join(filter(None, pieces))


def _region(side: str, region: Any) -> str:
    if not (isinstance(region, list) and len(region) == 3):
        return f"{side} {_words(region)}".strip()
    first, last, depth = region
    layers = f"layer {first}" if first == last else f"layers {first} to {last}"
    return f"{side} {layers} of {depth}"


def _words(value: Any) -> str:
    """A value as text, whatever it holds."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(item)}" for key, item in value.items())
    return ", ".join(map(_words, value)) if isinstance(value, list) else str(value)


@dataclass(frozen=True)
class Scored:
    """A score of a run.

    Arguments:
        of: what was scored, such as test.checkpoint_best.beam5.lenpen1
        values: metric -> number
        signature: what makes the number comparable; may be empty
        lines: sentences; None where that was not recorded
    """

    of: str
    values: dict[str, float]
    signature: str = ""
    lines: int | None = None


def read_scores(run: Path) -> list[Scored]:
    """All scores in a run folder, in the order of their names; unreadable files are passed over."""
    found = (_score(run, path) for path in sorted((run / "scores").glob("*.*")))
    return [score for score in found if score is not None]


def _score(run: Path, path: Path) -> Scored | None:
    from fairseq_deepnet.report.results import read_score

    if not path.is_dir() and path.suffix != ".json":
        return None
    try:
        score = read_score(run, str(path.relative_to(run)))
        # read_score knows translations; a language model has a perplexity
        content = json.loads(path.read_text(encoding="utf-8")) if score is None else {}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if score is not None:
        signature = "; ".join(score.signatures.values())
        return Scored(path.stem, score.values, signature, score.facts.get("lines"))
    keys = [key for key in ("perplexity", "word_perplexity") if key in content]
    values = {key: float(content[key]) for key in keys}
    return Scored(path.stem, values, "", content.get("lines")) if values else None
