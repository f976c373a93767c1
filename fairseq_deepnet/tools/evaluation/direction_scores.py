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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

from fairseq_deepnet.files import write_text
from fairseq_deepnet.records import NUMBER, Keys, read_record, write_record
from fairseq_deepnet.tools.corpora.folder import Direction
from fairseq_deepnet.tools.evaluation.scoring import METRICS
from fairseq_deepnet.tools.languages import RESOURCE_CLASSES, resource_class
from fairseq_deepnet.tools.tables import comma_separated, listed, markdown

ENGLISH: Final = "en"
SHARES: Final = ("off_target", "off_target_floor")
"""Share of lines in another language than the target's, 0 to 1; and the same of the reference,
which is the identifier's error."""
WIDEST_MATRIX: Final = 16
"""Languages that a matrix may have; more have a line per language instead."""
_KEYS: Final[Keys] = {
    "bleu": NUMBER,
    "chrf": NUMBER,
    "bleu_signature": str,
    "lines": int,
}


@dataclass(frozen=True)
class DirectionScore:
    """What one direction's JSON says.

    Args:
        values: of METRICS and SHARES; None for what is not known.
        signature: BLEU's.
        zero_shot: True if the model saw no training text of it; None where the JSON is silent.
        settings: what was asked for besides the texts: model, beam, options; "" if not recorded.
    """

    direction: Direction
    values: dict[str, float | None]
    lines: int
    signature: str
    zero_shot: bool | None
    settings: str = ""


class GroupAverage(NamedTuple):
    """Means over the directions of a group that have been scored, each counting once.

    Args:
        present, expected: how many of the group's directions there are, and should be.
        means: of METRICS and SHARES; None where there is nothing to average.
    """

    name: str
    present: int
    expected: int
    means: dict[str, float | None]

    def record(self) -> dict[str, Any]:
        """Return it for JSON."""
        means = {key: None if v is None else round(v, 4) for key, v in self.means.items()}
        counts = {"directions": self.present, "expected": self.expected}
        return {**counts, "complete": self.present == self.expected, **means}


class Summary(NamedTuple):
    """What is printed of the directions of a folder, and what it says."""

    text: str
    averages: list[GroupAverage]
    scores: list[DirectionScore]
    is_complete: bool


def read_direction(path: Path) -> DirectionScore:
    """Read SRC-TGT.json; ValueError naming the file for one that is damaged or of another kind."""
    try:
        content = read_record(path, _KEYS)
        direction = Direction.parse(str(content.get("direction", path.stem)))
        if str(direction) != path.stem:
            raise ValueError(f"it says that it is of {direction}")
        request = content.get("request", {})
        numbers = ((key, content.get(key)) for key in (*METRICS, *SHARES))
        found = {key: float(value) for key, value in numbers if value is not None}
        own = ("source", "reference", "tokenizer")  # differ between directions anyway
        return DirectionScore(
            direction,
            dict.fromkeys((*METRICS, *SHARES)) | found,
            content["lines"],
            content["bleu_signature"],
            content.get("zero_shot"),
            json.dumps({key: request[key] for key in sorted(request) if key not in own}),
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is no score of a direction ({error}): remove it and score the direction again"
        ) from error


def read_directions(folder: Path) -> dict[Direction, DirectionScore]:
    """Read all SRC-TGT.json of a folder; other files are passed over."""
    scores = {}
    for path in sorted(folder.glob("*-*.json")):
        try:
            direction = Direction.parse(path.stem)
        except ValueError:
            continue
        if "." not in path.stem:
            scores[direction] = read_direction(path)
    return scores


@dataclass(frozen=True)
class Results:
    """The scores of a set of directions, and what is known of the directions.

    Args:
        wanted: the directions that there should be.
        scores: of those that have been scored.
        training_lines: by pair or direction; empty where they are not known.
    """

    wanted: Sequence[Direction]
    scores: Mapping[Direction, DirectionScore]
    training_lines: Mapping[str, int]

    def lines(self, direction: Direction) -> int | None:
        """Return a pair's training lines, under either name; None for one that is not trained."""
        reverse = Direction(direction.target, direction.source)
        return self.training_lines.get(str(direction), self.training_lines.get(str(reverse)))

    def level(self, direction: Direction) -> str | None:
        """Return high, medium or low by the training lines; None for one that is not trained."""
        lines = self.lines(direction)
        return resource_class(lines) if lines else None

    def zero_shot(self, direction: Direction) -> bool | None:
        """Return what the score says, else the training lines; None where neither is known."""
        score = self.scores.get(direction)
        if score is not None and score.zero_shot is not None:
            return score.zero_shot
        return not self.lines(direction) if self.training_lines else None

    def value(self, direction: Direction, key: str) -> float | None:
        """Return a metric or share of a direction; None where there is none."""
        return self.scores[direction].values[key] if direction in self.scores else None

    def groups(self) -> dict[str, list[Direction]]:
        """Name of each average -> its directions; groups without any are left out.

        X-En and En-X hold no zero-shot directions, as in the paper's Table 2. "all supervised" and
        "zero-shot" hold only directions that are known to be so.
        """
        names = ["X-En", "En-X", "all supervised", "zero-shot", "all"]
        names += [f"{side}{name}" for name in RESOURCE_CLASSES for side in ("", "X-En ", "En-X ")]
        found: dict[str, list[Direction]] = {name: [] for name in names}
        for direction in self.wanted:
            unseen = self.zero_shot(direction)
            found["all"].append(direction)
            if unseen is not None:
                found["zero-shot" if unseen else "all supervised"].append(direction)
            if unseen:
                continue
            sides = [""]
            if ENGLISH in direction:
                sides.append("X-En " if direction.target == ENGLISH else "En-X ")
                found[sides[1].strip()].append(direction)
            if level := self.level(direction):
                for side in sides:
                    found[f"{side}{level}"].append(direction)
        return {
            f"{name} resource" if name.endswith(RESOURCE_CLASSES) else name: members
            for name, members in found.items()
            if members
        }

    def averages(self) -> list[GroupAverage]:
        """Return the means over the scored directions of each group."""
        found = []
        for name, members in self.groups().items():
            present = [self.scores[one].values for one in members if one in self.scores]
            means = {}
            for key in (*METRICS, *SHARES):
                known = [
                    value for value in (values[key] for values in present) if value is not None
                ]
                means[key] = fmean(known) if known else None
            found.append(GroupAverage(name, len(present), len(members), means))
        return found

    def matrix(self) -> str:
        """Return BLEU of each source (down) into each target; * zero-shot, ? to be scored."""
        wanted = set(self.wanted)
        targets = sorted({direction.target for direction in wanted})
        rows = [["from \\ into", *targets]]
        for source in sorted({direction.source for direction in wanted}):
            row = [source]
            for direction in (Direction(source, target) for target in targets):
                score = self.scores.get(direction)
                empty = "?" if direction in wanted else ""
                mark = "*" if score and score.zero_shot else ""
                row.append(number(score.values["bleu"]) + mark if score else empty)
            rows.append(row)
        return markdown(rows)

    def english_table(self) -> str | None:
        """Return a line a language, for corpora centred on English; None if few directions are."""
        with_english = [direction for direction in self.wanted if ENGLISH in direction]
        if len(with_english) < len(self.wanted) / 2:
            return None
        rows = [["language", "training lines", "class", "X-En", "En-X", "off-target En-X"]]
        for language in sorted({name for pair in with_english for name in pair} - {ENGLISH}):
            into, out_of = Direction(language, ENGLISH), Direction(ENGLISH, language)
            lines = self.lines(into)
            row = [language, f"{lines:,}" if lines else "", self.level(into) or ""]
            for direction in (into, out_of):
                is_missing = direction in self.wanted and direction not in self.scores
                row.append("?" if is_missing else number(self.value(direction, "bleu")))
            rows.append([*row, number(self.value(out_of, "off_target"), percent=True)])
        return markdown(rows)

    def csv(self) -> str:
        """Return a line a direction with all that is known of it; empty where nothing is."""
        keys = (*METRICS, *SHARES)
        heads = ["direction", "source", "target", "zero_shot", "class", "training_lines", "lines"]
        rows: list[list[object]] = [[*heads, *keys, "bleu_signature"]]
        for direction in self.wanted:
            score = self.scores.get(direction)
            known = [self.zero_shot(direction), self.level(direction), self.lines(direction)]
            row: list[object] = [direction, *direction, *known, score.lines if score else None]
            row += [self.value(direction, key) for key in keys]
            rows.append([*row, score.signature if score else None])
        return comma_separated(rows)


def number(value: float | None, percent: bool = False) -> str:
    """Return a score, or a share in per cent, for people; empty where there is none."""
    if value is None:
        return ""
    return f"{100 * value:.1f} %" if percent else f"{value:.2f}"


def averages_table(averages: Sequence[GroupAverage]) -> str:
    """Return the averages, each with the number of directions that it stands for."""
    rows = [["average over", "directions", *METRICS.values(), "off-target", "(of references)"]]
    for name, present, expected, means in averages:
        count = f"{present}" if present == expected else f"{present} of {expected} !"
        shares = [number(means[key], percent=True) for key in SHARES]
        rows.append([name, count, *(number(means[key]) for key in METRICS), *shares])
    return markdown(rows)


def tokenisations(scores: Iterable[DirectionScore]) -> str:
    """Say which tokenisation how many directions were scored with, and with which sacreBLEU."""
    found = [re.findall(r"(tok|version|case):([^|]*)", score.signature) for score in scores]
    counts = Counter(", ".join(f"{key} {value}" for key, value in fields) for fields in found)
    return "; ".join(f"{text} ({count} directions)" for text, count in counts.most_common())


def summarise(
    folder: Path, expected: Sequence[str] = (), training_lines: Mapping[str, int] | None = None
) -> Summary:
    """Write table.md, table.csv and summary.json of a folder.

    Args:
        expected: the directions that there should be, such as "de-en"; by default those there are.
        training_lines: training lines by pair or direction, for the resource classes.

    Raises FileNotFoundError for a folder without any score, ValueError for a damaged score.
    """
    there = read_directions(folder)
    wanted = list(dict.fromkeys(map(Direction.parse, expected))) or sorted(there)
    scores = {direction: there[direction] for direction in wanted if direction in there}
    if not scores:
        raise FileNotFoundError(
            f"{folder} has no SRC-TGT.json of {'the expected directions' if expected else 'scores'}"
        )
    results = Results(wanted, scores, training_lines or {})
    averages = results.averages()
    missing = [direction for direction in wanted if direction not in there]
    surplus = sorted(set(there) - set(wanted))
    settings = Counter(score.settings for score in scores.values())
    notes = []
    if missing:
        notes.append(
            f"INCOMPLETE: {len(scores)} of {len(wanted)} directions are scored; to be scored:"
            f" {listed(missing, 12)}. Averages marked with ! lack some of their directions."
        )
    if surplus:
        notes.append(f"Not among the expected directions, and left out: {listed(surplus, 12)}.")
    if len(settings) > 1:
        usual = settings.most_common(1)[0][0]
        others = [direction for direction in scores if scores[direction].settings != usual]
        notes.append(
            "MIXED: these were scored with another model or other options than the rest:"
            f" {listed(others, 12)}."
        )
    notes.append(f"BLEU: {tokenisations(scores.values())}.")
    by_language = results.english_table()
    is_wide = len({name for direction in wanted for name in direction}) > WIDEST_MATRIX
    if is_wide and by_language is not None:
        table = by_language
    else:
        table = f"BLEU by direction (* zero-shot, ? still to be scored):\n\n{results.matrix()}"
    text = "\n\n".join([*notes, table, averages_table(averages)])
    write_text(folder / "table.md", f"{text}\n")
    write_text(folder / "table.csv", results.csv())
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
    return Summary(text, averages, list(scores.values()), not missing)
