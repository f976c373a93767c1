"""The scores in a run folder, as reports, sweeps and figures read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.records import read_record
from fairseq_deepnet.tools.evaluation.direction_scores import Results, read_directions
from fairseq_deepnet.tools.evaluation.scoring import METRICS

SPLIT: Final = "test"
OTHER_TEXT: Final = "text."
"""What names of scores begin with that are of other text than the data folder's (--text)."""
TOKENISED: Final = "bleu_tokenised"
"""Key of fairseq's own BLEU on the tokens of the data, where a score has it beside sacreBLEU."""
_BESIDE_METRICS: Final = (TOKENISED, "perplexity", "word_perplexity")
DEFAULTS: Final = [
    f"scores/{SPLIT}.{checkpoint}.beam5.lenpen1"
    for checkpoint in ("checkpoint_best", "checkpoint_last")
]
"""Scores of the default request, the first that is there counts."""
_REMEDY: Final = "remove it, and score again"
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

    Args:
        file: relative to the run folder; a folder where many directions were scored.
        values: METRICS and bleu_tokenised; of many directions x-en, en-x, average, zero-shot; of a
            language model perplexity, word_perplexity.
        signatures: metric -> signature, all that occur.
        facts: lines, beam, lenpen, updates, averaged, ... as recorded.
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
    def of(self) -> str:
        """What was translated, for people: a split of the data, or other text."""
        split = self.facts.get("split") or SPLIT
        if self.name.startswith(OTHER_TEXT):
            place = self.name.removeprefix(OTHER_TEXT).partition(f".{split}.")[0]
            return f"{split} text of the folder {place}"
        return f"{split} set"

    @property
    def is_of_translations(self) -> bool:
        """True if there is a BLEU: a language model has a perplexity."""
        return "average" in self.values or "bleu" in self.values

    @property
    def headline(self) -> float:
        """The one number that stands for all: sacreBLEU, or its mean over trained directions."""
        return self.values["average"] if "average" in self.values else self.values["bleu"]

    def described(self) -> str:
        """Return one short text with the numbers."""
        if "average" in self.values:
            parts = [f"{key} {value:.2f}" for key, value in self.values.items()]
            return f"BLEU of {self.facts['directions']} directions: {', '.join(parts)}"
        return f"BLEU {self.values['bleu']:.2f}"


def _fact(record: Mapping[str, Any], key: str) -> Any:
    """Return a fact as recorded, or as asked for: of a direction only that is kept."""
    return (record.get("request") or {}).get(key) if record.get(key) is None else record[key]


def decoding(record: Mapping[str, Any]) -> str:
    """Say how the translations of a score were made: the search, the engine, the model.

    Args:
        record: `facts` of a score, or the JSON of a single direction.
    """
    asked = record.get("request") or {}
    parts = [f"beam {_fact(record, 'beam')}, lenpen {_fact(record, 'lenpen')}"]
    parts += [" ".join(asked["options"])] if asked.get("options") else []
    if _fact(record, "engine") == "ctranslate2":
        parts.append(f"decoded by ctranslate2 {_fact(record, 'quantization')}")
    averaged = len(record.get("averaged") or asked.get("checkpoints") or ())
    parts += [f"average of {averaged} checkpoints"] if averaged > 1 else []
    return ", ".join(parts)


def read_scores(run: Path) -> list[RunScore]:
    """Read all scores in a run folder, in the order of their names; pass over unreadable files."""
    found = []
    for path in sorted((run / "scores").glob("*.*")):
        try:
            score = _read(path, run)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        found += [] if score is None else [score]
    return found


def read_score(run: Path, name: str | None = None) -> RunScore | None:
    """Read one score of a run; None if it is absent.

    Without a name, a file or folder in the run, it is the score of the default request: the test
    set by checkpoint_best, or by checkpoint_last where only that has one. The time of a file never
    decides, so that neither scoring in another way nor copying a run changes a reported number.
    """
    names = [name] if name is not None else DEFAULTS
    for path in (run / name for name in names):
        # a direction is a file, many are a folder
        for place in (path, path.with_name(f"{path.name}.json")):
            if place.exists() and (score := _translated(place, run)) is not None:
                return score
    return None


def _translated(path: Path, run: Path) -> RunScore | None:
    score = _read(path, run)
    return score if score is not None and score.is_of_translations else None


def _read(path: Path, run: Path) -> RunScore | None:
    """Read a score of one direction, or a folder of many; None for anything else."""
    if path.is_dir():
        return _read_many(path, run)
    if path.suffix != ".json":
        return None
    content = read_record(path, remedy=_REMEDY)
    keys = [key for key in (*METRICS, *_BESIDE_METRICS) if content.get(key) is not None]
    values = {key: float(content[key]) for key in keys}
    signatures = {
        key: str(content[f"{key}_signature"]) for key in values if f"{key}_signature" in content
    }
    return RunScore(str(path.relative_to(run)), values, signatures, content) if values else None


def _read_many(folder: Path, run: Path) -> RunScore | None:
    """Return the means over the directions of a multilingual model: X-En and En-X of those trained,
    their average as in the paper's table 2, and the rest zero-shot.
    """
    file = folder / "summary.json"
    summary = read_record(file, remedy=_REMEDY) if file.is_file() else {}
    surplus = summary.get("left_out") or []
    scores = {
        direction: score
        for direction, score in read_directions(folder).items()
        if str(direction) not in surplus
    }
    if not scores:
        return None
    means = {item.name: item.means["bleu"] for item in Results([*scores], scores, {}).averages()}
    found = {key: means.get(group) for key, group in _AVERAGES.items()}
    values = {key: mean for key, mean in found.items() if mean is not None}
    values.setdefault("average", means["all"] or 0.0)
    signatures = sorted({score.signature for score in scores.values()})
    first = read_record(folder / f"{next(iter(scores))}.json", remedy=_REMEDY)
    asked = first.get("request") or {}
    facts: dict[str, Any] = {
        # those that were scored otherwise stand beside, and the mean is not of them
        "expected": summary.get("expected", len(scores)) + len(surplus),
        "mixed": len({score.settings for score in scores.values()}) > 1,
    }
    facts |= {key: asked.get(key, first.get(key)) for key in ("beam", "lenpen", "split")}
    facts |= {key: asked.get(key) for key in ("engine", "quantization")}
    facts |= {key: first.get(key) for key in ("updates", "averaged")}
    facts |= {"lines": sum(score.lines for score in scores.values()), "directions": len(scores)}
    facts["request"] = json.loads(next(iter(scores.values())).settings)
    return RunScore(str(folder.relative_to(run)), values, {"bleu": "; ".join(signatures)}, facts)
