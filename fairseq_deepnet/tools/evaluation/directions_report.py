"""`deepnet directions`: a folder of scores, one JSON a direction, as one table with its averages.

Reads SRC-TGT.json (the keys of `scoring.score`, with "direction", "zero_shot" and "off_target"),
and writes table.md, table.csv and summary.json beside them. Every average says how many of its
directions have been scored, and that of an incomplete set is marked wherever it appears.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from fairseq_deepnet.files import write_text
from fairseq_deepnet.records import write_record
from fairseq_deepnet.tools.corpora.folder import Direction
from fairseq_deepnet.tools.evaluation.directions import (
    ENGLISH,
    Average,
    Score,
    average,
    groups,
    read_scores,
)
from fairseq_deepnet.tools.evaluation.directions_tables import (
    as_csv,
    averages_table,
    english_table,
    matrix,
    tokenisations,
)

Beside = Callable[[Sequence[Average], Sequence[Score]], list[str]]

WIDEST_MATRIX: Final = 16
"""Languages that a matrix may have on a terminal. table.md has it whatever its width, unless all of
it would be one row and one column, those of English, which the table of languages has."""


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
    there = read_scores(folder)
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
