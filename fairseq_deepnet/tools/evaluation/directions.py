"""Scores of many directions, and averages over the groups of the literature.

An average over a group says how many of the group's directions it has: a model is not better
because its hard directions are still to be translated.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from fairseq_deepnet.records import NUMBER, Shape, read_record
from fairseq_deepnet.tools.corpora.folder import Direction
from fairseq_deepnet.tools.languages import RESOURCE_CLASSES, resource_class

ENGLISH: Final = "en"
_SHAPE: Final[Shape] = {
    "bleu": NUMBER,
    "chrf": NUMBER,
    "bleu_signature": str,
    "lines": int,
    "direction?": str,
    "zero_shot?": bool,
    "off_target?": NUMBER,
    "off_target_floor?": NUMBER,
    "request?": dict,
}


@dataclass(frozen=True)
class Score:
    """What one direction's JSON says.

    Arguments:
        zero_shot: whether the model saw no training text of it; None where the JSON does not say
        off_target: share of lines in another language than the target's, 0 to 1; None if unknown
        off_target_floor: the same of the reference, which is the identifier's error
        settings: what was asked for besides the texts: model, beam, options; "" if not recorded
    """

    direction: Direction
    bleu: float
    chrf: float
    lines: int
    signature: str
    zero_shot: bool | None
    off_target: float | None
    off_target_floor: float | None
    settings: str = ""


@dataclass(frozen=True)
class Average:
    """Means over the directions of a group that have been scored.

    Arguments:
        present, expected: how many of the group's directions there are, and should be
        off_target_of: how many of those present have an off-target rate
    """

    name: str
    present: int
    expected: int
    bleu: float | None
    chrf: float | None
    off_target: float | None
    off_target_floor: float | None
    off_target_of: int

    @property
    def complete(self) -> bool:
        """Whether every direction of the group has been scored."""
        return self.present == self.expected

    def record(self) -> dict[str, Any]:
        """For JSON: the mean of an incomplete group bears another name than that of a whole one."""
        prefix = "" if self.complete else "incomplete_"
        means = {
            f"{prefix}{key}": None if value is None else round(value, 4)
            for key, value in (
                ("bleu", self.bleu),
                ("chrf", self.chrf),
                ("off_target", self.off_target),
                ("off_target_floor", self.off_target_floor),
            )
        }
        counts = {"directions": self.present, "expected": self.expected}
        return {**counts, "complete": self.complete, **means, "off_target_of": self.off_target_of}


def read_score(path: Path) -> Score:
    """Read SRC-TGT.json; ValueError naming the file for one that is damaged or of another kind."""
    try:
        content = read_record(path, _SHAPE)
        direction = Direction.parse(str(content.get("direction", path.stem)))
        if str(direction) != path.stem:
            raise ValueError(f"it says that it is of {direction}")
        return Score(
            direction,
            float(content["bleu"]),
            float(content["chrf"]),
            int(content["lines"]),
            str(content["bleu_signature"]),
            content.get("zero_shot"),
            content.get("off_target"),
            content.get("off_target_floor"),
            _settings(content.get("request", {})),
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is no score of a direction ({error}): remove it and score the direction again"
        ) from error


def _settings(request: Mapping[str, Any]) -> str:
    """A request without what differs between directions as a matter of course."""
    own = ("source", "reference", "tokenizer")
    return json.dumps({key: request[key] for key in sorted(request) if key not in own})


def read_scores(folder: Path) -> dict[Direction, Score]:
    """All SRC-TGT.json of a folder; other files are passed over."""
    scores = {}
    for path in sorted(folder.glob("*-*.json")):
        if "." in path.stem:
            continue
        try:
            direction = Direction.parse(path.stem)
        except ValueError:
            continue
        scores[direction] = read_score(path)
    return scores


def pair_lines(direction: Direction, training_lines: Mapping[str, int]) -> int | None:
    """Training lines of a pair, under either of its names; None for one that is not trained."""
    reverse = Direction(direction.target, direction.source)
    return training_lines.get(str(direction), training_lines.get(str(reverse)))


def direction_class(direction: Direction, training_lines: Mapping[str, int]) -> str | None:
    """High, medium or low by the pair's training lines; None for one that is not trained."""
    lines = pair_lines(direction, training_lines)
    return resource_class(lines) if lines else None


def is_zero_shot(
    direction: Direction, score: Score | None, training_lines: Mapping[str, int]
) -> bool | None:
    """What the score says; without one, by the training lines; None where neither is known."""
    if score is not None and score.zero_shot is not None:
        return score.zero_shot
    return not pair_lines(direction, training_lines) if training_lines else None


def groups(
    directions: Iterable[Direction],
    scores: Mapping[Direction, Score],
    training_lines: Mapping[str, int],
) -> dict[str, list[Direction]]:
    """Name of each average -> its directions; groups without any are left out.

    X-En and En-X hold no zero-shot directions, as in the paper's Table 2. "all supervised" and
    "zero-shot" hold only directions that are known to be so.
    """
    names = ("X-En", "En-X", "all supervised", "zero-shot", "all")
    found: dict[str, list[Direction]] = {name: [] for name in names}
    by_class: dict[str, list[Direction]] = {
        f"{side}{name}": [] for name in RESOURCE_CLASSES for side in ("", "X-En ", "En-X ")
    }
    for direction in directions:
        unseen = is_zero_shot(direction, scores.get(direction), training_lines)
        found["all"].append(direction)
        if unseen is not None:
            found["zero-shot" if unseen else "all supervised"].append(direction)
        if unseen:
            continue
        sides = [""]
        if ENGLISH in direction:
            sides.append("X-En " if direction.target == ENGLISH else "En-X ")
            found[sides[1].strip()].append(direction)
        level = direction_class(direction, training_lines)
        for side in sides if level else ():
            by_class[f"{side}{level}"].append(direction)
    named = {f"{name} resource": members for name, members in by_class.items()}
    return {name: members for name, members in (found | named).items() if members}


def average(name: str, members: Sequence[Direction], scores: Mapping[Direction, Score]) -> Average:
    """Means over the scored ones of `members`, each direction counting once."""
    present = [scores[direction] for direction in members if direction in scores]
    told = [score for score in present if score.off_target is not None]
    floors = [score.off_target_floor for score in told if score.off_target_floor is not None]
    return Average(
        name,
        len(present),
        len(members),
        fmean(score.bleu for score in present) if present else None,
        fmean(score.chrf for score in present) if present else None,
        fmean(score.off_target for score in told if score.off_target is not None) if told else None,
        fmean(floors) if floors else None,
        len(told),
    )
