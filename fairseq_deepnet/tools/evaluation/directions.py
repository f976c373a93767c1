"""Scores of many directions: read, averaged over the groups of the literature, and as one table.

Reads SRC-TGT.json (the keys of `scoring.score`, with "direction", "zero_shot" and "off_target"),
and writes table.md, table.csv and summary.json beside them.

An average over a group says how many of the group's directions it has: a model is not better
because its hard directions are still to be translated; that of an incomplete set is marked
wherever it appears.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from fairseq_deepnet.files import write_text
from fairseq_deepnet.records import NUMBER, Shape, read_record, write_record
from fairseq_deepnet.tools.corpora.folder import Direction
from fairseq_deepnet.tools.languages import RESOURCE_CLASSES, resource_class
from fairseq_deepnet.tools.tables import comma_separated, markdown

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
class DirectionScore:
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
class GroupAverage:
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


Beside = Callable[[Sequence[GroupAverage], Sequence[DirectionScore]], list[str]]

WIDEST_MATRIX: Final = 16
"""Languages that a matrix may have on a terminal. table.md has it whatever its width, unless all of
it would be one row and one column, those of English, which the table of languages has."""


def read_direction(path: Path) -> DirectionScore:
    """Read SRC-TGT.json; ValueError naming the file for one that is damaged or of another kind."""
    try:
        content = read_record(path, _SHAPE)
        direction = Direction.parse(str(content.get("direction", path.stem)))
        if str(direction) != path.stem:
            raise ValueError(f"it says that it is of {direction}")
        request = content.get("request", {})
        own = ("source", "reference", "tokenizer")  # differ between directions anyway
        return DirectionScore(
            direction,
            float(content["bleu"]),
            float(content["chrf"]),
            int(content["lines"]),
            str(content["bleu_signature"]),
            content.get("zero_shot"),
            content.get("off_target"),
            content.get("off_target_floor"),
            json.dumps({key: request[key] for key in sorted(request) if key not in own}),
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is no score of a direction ({error}): remove it and score the direction again"
        ) from error


def read_directions(folder: Path) -> dict[Direction, DirectionScore]:
    """All SRC-TGT.json of a folder; other files are passed over."""
    scores = {}
    for path in sorted(folder.glob("*-*.json")):
        if "." in path.stem:
            continue
        try:
            direction = Direction.parse(path.stem)
        except ValueError:
            continue
        scores[direction] = read_direction(path)
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
    direction: Direction, score: DirectionScore | None, training_lines: Mapping[str, int]
) -> bool | None:
    """What the score says; without one, by the training lines; None where neither is known."""
    if score is not None and score.zero_shot is not None:
        return score.zero_shot
    return not pair_lines(direction, training_lines) if training_lines else None


def groups(
    directions: Iterable[Direction],
    scores: Mapping[Direction, DirectionScore],
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


def average(
    name: str, members: Sequence[Direction], scores: Mapping[Direction, DirectionScore]
) -> GroupAverage:
    """Means over the scored ones of `members`, each direction counting once."""
    present = [scores[direction] for direction in members if direction in scores]
    told = [score for score in present if score.off_target is not None]
    floors = [score.off_target_floor for score in told if score.off_target_floor is not None]
    return GroupAverage(
        name,
        len(present),
        len(members),
        fmean(score.bleu for score in present) if present else None,
        fmean(score.chrf for score in present) if present else None,
        fmean(score.off_target for score in told if score.off_target is not None) if told else None,
        fmean(floors) if floors else None,
        len(told),
    )


def number(value: float | None, percent: bool = False) -> str:
    """Return a score, or a share in per cent, for people; empty where there is none."""
    if value is None:
        return ""
    return f"{100 * value:.1f} %" if percent else f"{value:.2f}"


def matrix(directions: Iterable[Direction], scores: Mapping[Direction, DirectionScore]) -> str:
    """BLEU of every source (down) into every target (across); * is zero-shot, ? is to be scored."""
    wanted = set(directions)
    sources = sorted({direction.source for direction in wanted})
    targets = sorted({direction.target for direction in wanted})
    rows = [["from \\ into", *targets]]
    for source in sources:
        row = [source]
        for target in targets:
            direction = Direction(source, target)
            score = scores.get(direction)
            if score is None:
                row.append("?" if direction in wanted else "")
            else:
                row.append(f"{score.bleu:.2f}{'*' * bool(score.zero_shot)}")
        rows.append(row)
    return markdown(rows)


def english_table(
    directions: Iterable[Direction],
    scores: Mapping[Direction, DirectionScore],
    training_lines: Mapping[str, int],
) -> str | None:
    """One line a language, for corpora that are centred on English; None if few directions are."""
    wanted = list(directions)
    others = sorted({name for pair in wanted if ENGLISH in pair for name in pair if name != "en"})
    if sum(ENGLISH in direction for direction in wanted) < len(wanted) / 2:
        return None
    rows = [["language", "training lines", "class", "X-En", "En-X", "off-target En-X"]]
    for language in others:
        into, out_of = Direction(language, ENGLISH), Direction(ENGLISH, language)
        lines = pair_lines(into, training_lines)
        row = [language, f"{lines:,}" if lines else "", direction_class(into, training_lines) or ""]
        for direction in (into, out_of):
            score = scores.get(direction)
            row.append(number(score.bleu) if score else "?" * (direction in wanted))
        rows.append([*row, number(scores[out_of].off_target, True) if out_of in scores else ""])
    return markdown(rows)


def averages_table(averages: Sequence[GroupAverage]) -> str:
    """The averages, each with the number of directions that it stands for."""
    rows = [["average over", "directions", "BLEU", "chrF", "off-target", "(of references)"]]
    for item in averages:
        count = f"{item.present}" if item.complete else f"{item.present} of {item.expected} !"
        shares = [number(share, True) for share in (item.off_target, item.off_target_floor)]
        if item.off_target is not None and item.off_target_of < item.present:
            shares[0] = f"{shares[0]} (of {item.off_target_of})"
        rows.append([item.name, count, number(item.bleu), number(item.chrf), *shares])
    return markdown(rows)


def tokenisations(scores: Iterable[DirectionScore]) -> str:
    """Which tokenisation how many directions were scored with, and with which sacreBLEU."""
    found = [re.findall(r"(tok|version|case):([^|]*)", score.signature) for score in scores]
    counts = Counter(", ".join(f"{key} {value}" for key, value in fields) for fields in found)
    return "; ".join(f"{text} ({count} directions)" for text, count in counts.most_common())


def as_csv(
    directions: Sequence[Direction],
    scores: Mapping[Direction, DirectionScore],
    training_lines: Mapping[str, int],
) -> str:
    """One line a direction with all that is known of it; empty where nothing is."""
    heads = ["direction", "source", "target", "zero_shot", "class", "training_lines", "lines"]
    heads += ["bleu", "chrf", "off_target", "off_target_floor", "bleu_signature"]
    rows: list[list[object]] = [[*heads]]
    for direction in directions:
        score = scores.get(direction)
        own: list[object] = [None] * 6
        if score:
            own = [score.lines, score.bleu, score.chrf, score.off_target, score.off_target_floor]
            own.append(score.signature)
        lines = pair_lines(direction, training_lines)
        level = direction_class(direction, training_lines)
        unseen = is_zero_shot(direction, score, training_lines)
        rows.append([direction, *direction, unseen, level, lines, *own])
    return comma_separated(rows)


def _list(names: Sequence[object], limit: int = 12) -> str:
    shown = ", ".join(map(str, names[:limit]))
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")


def summarise(
    folder: Path,
    expected: Sequence[str] = (),
    training_lines: Mapping[str, int] | None = None,
    beside: Beside | None = None,
) -> str:
    """Write table.md, table.csv and summary.json of a folder, and return a readable table.

    Arguments:
        expected: the directions that there should be, such as "de-en"; by default those there are
        training_lines: training lines by pair or direction, for the resource classes
        beside: makes further paragraphs of averages and scores: published numbers, say

    Raises FileNotFoundError for a folder without any score, ValueError for a damaged score.
    """
    known = training_lines or {}
    there = read_directions(folder)
    wanted = list(dict.fromkeys(map(Direction.parse, expected))) or sorted(there)
    scores = {direction: there[direction] for direction in wanted if direction in there}
    if not scores:
        raise FileNotFoundError(
            f"{folder} has no SRC-TGT.json of {'the expected directions' if expected else 'scores'}"
        )
    missing = [direction for direction in wanted if direction not in there]
    surplus = sorted(set(there) - set(wanted))
    averages = [
        average(name, members, scores) for name, members in groups(wanted, scores, known).items()
    ]
    notes = []
    if missing:
        notes.append(
            f"INCOMPLETE: {len(scores)} of {len(wanted)} directions are scored; to be scored:"
            f" {_list(missing)}. Averages marked with ! lack some of their directions."
        )
    if surplus:
        notes.append(f"Not among the expected directions, and left out: {_list(surplus)}.")
    settings = Counter(score.settings for score in scores.values())
    if len(settings) > 1:
        usual = settings.most_common(1)[0][0]
        others = [direction for direction in wanted if direction in scores]
        others = [direction for direction in others if scores[direction].settings != usual]
        notes.append(
            "MIXED: these were scored with another model or other options than the rest:"
            f" {_list(others)}."
        )
    notes.append(f"BLEU: {tokenisations(scores.values())}.")
    full = matrix(wanted, scores)
    languages = {name for direction in wanted for name in direction}
    by_language = english_table(wanted, scores, known) if len(languages) > 4 else None
    classes = [item for item in averages if item.name.endswith(" resource")]
    if len([item for item in classes if " " not in item.name.removesuffix(" resource")]) == 1:
        notes.append(f"Every trained pair is {classes[0].name.replace(' ', '-')}, by its lines.")
        classes_shown = [item for item in averages if item not in classes]
    else:
        classes_shown = averages
    tables = [averages_table(classes_shown)]
    if beside:
        tables += beside(averages, list(scores.values()))
    legend = "BLEU by direction (* zero-shot, ? still to be scored):"
    wide = len(languages) > WIDEST_MATRIX
    is_told = by_language is not None and all(ENGLISH in direction for direction in wanted)
    parts = [*notes, *tables, *filter(None, [by_language])]
    parts += [] if wide and is_told else [legend, full]
    write_text(folder / "table.md", "\n\n".join(parts) + "\n")
    write_text(folder / "table.csv", as_csv(wanted, scores, known))
    summary = {
        "complete": not missing,
        "directions": len(scores),
        "expected": len(wanted),
        "missing": list(map(str, missing)),
        "left_out": list(map(str, surplus)),
        "mixed": len(settings) > 1,
        "averages": {item.name: item.record() for item in averages},
        "tokenisation": tokenisations(scores.values()),
    }
    write_record(folder / "summary.json", summary)
    if not wide:
        return "\n\n".join([*notes, legend, full, *tables])
    return "\n\n".join([*filter(None, [by_language]), *notes, *tables])
