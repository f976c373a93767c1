"""The scores in a run folder, as reports, sweeps and figures read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.records import NUMBER, Shape, read_record
from fairseq_deepnet.tools.evaluation import directions

_ASKED: Final[Shape] = {
    "engine?": str,
    "quantization?": str,
    "beam?": NUMBER,
    "lenpen?": NUMBER,
    "split?": str,
    "averaged?": list,
    "request?": {
        "options?": [str],
        "checkpoints?": list,
        "engine?": str,
        "quantization?": str,
        "beam?": NUMBER,
        "lenpen?": NUMBER,
    },
}
_REMEDY: Final = "remove it, and score again"
SPLIT: Final = "test"
TOKENISED: Final = "bleu_tokenised"
"""Key of fairseq's own BLEU on the tokens of the data, where a score has it beside sacreBLEU."""
_OF_TRANSLATIONS: Final = ("bleu", "chrf", TOKENISED)
_OF_MODELS: Final = ("perplexity", "word_perplexity")
SHAPE: Final[Shape] = _ASKED | {
    **{f"{key}?": NUMBER for key in (*_OF_TRANSLATIONS, *_OF_MODELS)},
    "bleu_signature?": str,
    "lines?": int,
    "updates?": int,
}
"""What the JSON of a score holds."""
_AVERAGES: Final = {
    "x-en": "X-En",
    "en-x": "En-X",
    "average": "all supervised",
    "zero-shot": "zero-shot",
}
"""What is read of a multilingual model -> the group in directions.py."""


@dataclass(frozen=True)
class RunScore:
    """A score as scripts/eval_bleu.sh or scripts/eval_perplexity.sh wrote it.

    Arguments:
        file: relative to the run folder; a folder where many directions were scored
        values: bleu, chrf, bleu_tokenised; of many directions x-en, en-x, average, zero-shot; of a
            language model perplexity, word_perplexity
        signatures: metric -> signature, all that occur
        facts: lines, beam, lenpen, updates, averaged, ... as recorded
    """

    file: str
    values: dict[str, float]
    signatures: dict[str, str]
    facts: dict[str, Any]

    @property
    def name(self) -> str:
        """What was scored, and how: test.checkpoint_best.beam5.lenpen1."""
        return Path(self.file).name.removesuffix(".json")

    @property
    def is_of_translations(self) -> bool:
        """Whether there is a BLEU: a language model has a perplexity."""
        return "average" in self.values or "bleu" in self.values

    @property
    def headline(self) -> float:
        """The one number that stands for all: sacreBLEU, or its mean over trained directions."""
        return self.values["average"] if "average" in self.values else self.values["bleu"]

    @property
    def is_fairseqs(self) -> bool:
        """Whether fairseq translated: the engine that other scores are held against."""
        return _fact(self.facts, "engine") in (None, "fairseq")

    def described(self) -> str:
        """One short text with the numbers."""
        if "average" in self.values:
            parts = [f"{key} {value:.2f}" for key, value in self.values.items()]
            return f"BLEU of {self.facts['directions']} directions: {', '.join(parts)}"
        return f"BLEU {self.values['bleu']:.2f}"


def _fact(record: Mapping[str, Any], key: str) -> Any:
    """As recorded, or as asked for: of a direction only that is kept."""
    return (record.get("request") or {}).get(key) if record.get(key) is None else record[key]


def decoding(record: Mapping[str, Any]) -> str:
    """How the translations of a score were made, in words: the search, the engine, the model.

    Arguments:
        record: `facts` of a score, or the JSON of a single direction
    """
    asked = record.get("request") or {}
    parts = [f"beam {_fact(record, 'beam')}, lenpen {_fact(record, 'lenpen')}"]
    parts += [" ".join(asked["options"])] if asked.get("options") else []
    if _fact(record, "engine") == "ctranslate2":
        parts.append(f"decoded by ctranslate2 {_fact(record, 'quantization')}")
    averaged = len(record.get("averaged") or asked.get("checkpoints") or ())
    parts += [f"average of {averaged} checkpoints"] if averaged > 1 else []
    return ", ".join(parts)


def _one(file: Path, run: Path) -> RunScore | None:
    content = read_record(file, SHAPE, _REMEDY)
    values = {
        key: float(content[key])
        for key in (*_OF_TRANSLATIONS, *_OF_MODELS)
        if content.get(key) is not None
    }
    if not values:
        return None
    signatures = {
        key: str(content[f"{key}_signature"]) for key in values if f"{key}_signature" in content
    }
    return RunScore(str(file.relative_to(run)), values, signatures, content)


def _many(folder: Path, run: Path) -> RunScore | None:
    """The means over the directions of a multilingual model: X-En and En-X of those trained, their
    average as in the paper's table 2, and the rest zero-shot.
    """
    summary = folder / "summary.json"
    told = read_record(summary, {"left_out?": [str]}, _REMEDY) if summary.is_file() else {}
    surplus = set(told.get("left_out", []))
    scores = {
        direction: score
        for direction, score in directions.read_directions(folder).items()
        if str(direction) not in surplus
    }
    if not scores:
        return None
    members = directions.groups(scores, scores, {})
    values: dict[str, float] = {}
    for key, group in _AVERAGES.items():
        mean = directions.average(group, members.get(group, []), scores).bleu
        if mean is not None:
            values[key] = mean
    values.setdefault("average", directions.average("all", members["all"], scores).bleu or 0.0)
    signatures = sorted({score.signature for score in scores.values()})
    first = read_record(folder / f"{next(iter(scores))}.json", _ASKED, _REMEDY)
    asked = first.get("request") or {}
    facts = {key: asked.get(key, first.get(key)) for key in ("beam", "lenpen", "split")}
    facts |= {key: asked.get(key) for key in ("engine", "quantization")}
    facts |= {key: first.get(key) for key in ("updates", "averaged")}
    facts |= {"lines": sum(score.lines for score in scores.values()), "directions": len(scores)}
    facts |= {key: told[key] for key in ("expected", "mixed") if key in told}
    facts["request"] = json.loads(next(iter(scores.values())).settings)
    return RunScore(str(folder.relative_to(run)), values, {"bleu": "; ".join(signatures)}, facts)


def _read(path: Path, run: Path) -> RunScore | None:
    if path.is_dir():
        return _many(path, run)
    return _one(path, run) if path.suffix == ".json" else None


def read_score(run: Path, name: str | None = None) -> RunScore | None:
    """A run's test score: the one called `name` (a file or folder in it), otherwise the newest; of
    two engines with equal settings it is fairseq's, whichever is newer.
    """
    if name is not None and (run / name).exists():
        return _translated(run / name, run)
    found = sorted((run / "scores").glob(f"{SPLIT}.*"), key=lambda path: path.stat().st_mtime)
    scores = (_translated(path, run) for path in reversed(found))
    newest = next((score for score in scores if score is not None), None)
    if newest is None or newest.is_fairseqs:
        return newest
    return next((score for score in read_scores(run) if _is_twin(score, newest)), newest)


def _translated(path: Path, run: Path) -> RunScore | None:
    score = _read(path, run)
    return score if score is not None and score.is_of_translations else None


def _is_twin(score: RunScore, other: RunScore) -> bool:
    """Whether fairseq made it of the same model and text, with the same search, as `other`."""

    def settings(one: RunScore) -> dict[str, Any]:
        asked = one.facts.get("request") or {}
        rest = {key: asked[key] for key in asked if key not in ("engine", "quantization")}
        return rest and {**rest, "directions": one.facts.get("directions")}

    same = settings(score) == settings(other) != {}
    return same and score.is_fairseqs and score.is_of_translations


def read_scores(run: Path) -> list[RunScore]:
    """All scores in a run folder, in the order of their names; unreadable files are passed over."""
    found = []
    for path in sorted((run / "scores").glob("*.*")):
        try:
            score = _read(path, run)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        found += [] if score is None else [score]
    return found
