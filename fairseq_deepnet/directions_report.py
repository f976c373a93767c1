"""`deepnet directions`: a folder of scores, one JSON a direction, as one table with its averages.

Reads SRC-TGT.json (the keys of `scoring.score`, with "direction", "zero_shot" and "off_target"),
and writes table.md, table.csv and summary.json beside them. Every average says how many of its
directions have been scored, and that of an incomplete set is marked wherever it appears.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from fairseq_deepnet import paper
from fairseq_deepnet.corpora.folder import DataFolder, Direction
from fairseq_deepnet.directions import (
    ENGLISH,
    Average,
    Score,
    average,
    direction_class,
    groups,
    is_zero_shot,
    pair_lines,
    read_scores,
)
from fairseq_deepnet.provenance import write_text

WIDEST_MATRIX: Final = 16
"""Languages that a matrix may have on a terminal; table.md has it whatever its width."""
PAPER: Final = {
    "opus100": ("table2", {"x-en": "X-En", "en-x": "En-X", "average": "all supervised"}),
    "wmt": ("table3", {"wmt": "all"}),
    "opus": ("table3", {"opus": "all"}),
    "ted": ("table3", {"ted": "all"}),
    "flores": ("table3", {"flores": "all"}),
}
"""Published numbers to show beside ours: paper's table, and its columns as names of averages."""

Rows = list[list[str]]


def markdown(rows: Rows) -> str:
    """A Markdown table, also aligned for reading as it is; numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [
        "| "
        + " | ".join(
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in (rows[0], rule, *rows[1:])
    ]
    return "\n".join(lines)


def _number(value: float | None, percent: bool = False) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f} %" if percent else f"{value:.2f}"


def matrix(directions: Iterable[Direction], scores: Mapping[Direction, Score]) -> str:
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
    scores: Mapping[Direction, Score],
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
            row.append(_number(score.bleu) if score else "?" * (direction in wanted))
        rows.append([*row, _number(scores[out_of].off_target, True) if out_of in scores else ""])
    return markdown(rows)


def averages_table(averages: Sequence[Average]) -> str:
    """The averages, each with the number of directions that it stands for."""
    rows = [["average over", "directions", "BLEU", "chrF", "off-target", "(of references)"]]
    for item in averages:
        count = f"{item.present}" if item.complete else f"{item.present} of {item.expected} !"
        shares = [_number(share, True) for share in (item.off_target, item.off_target_floor)]
        if item.off_target is not None and item.off_target_of < item.present:
            shares[0] = f"{shares[0]} (of {item.off_target_of})"
        rows.append([item.name, count, _number(item.bleu), _number(item.chrf), *shares])
    return markdown(rows)


def paper_table(averages: Sequence[Average], published: str) -> str:
    """Our averages below the paper's numbers; an incomplete one is marked with "!"."""
    if published not in PAPER:
        raise ValueError(f"no published numbers for {published!r}; choose from {', '.join(PAPER)}")
    name, columns = PAPER[published]
    table = paper.table(name)
    ours = {item.name: item for item in averages}
    rows = [[f"{table.source}, BLEU", *columns.values()]]
    for key, row in table.rows.items():
        rows.append([row.name, *(str(table.value(key, column)) for column in columns)])
    own = [ours.get(group) for group in columns.values()]
    cells = [_number(item.bleu) + " !" * (not item.complete) if item else "" for item in own]
    return f"{markdown([*rows, ['this model', *cells]])}\n\nThe paper's numbers: {table.metric}."


def tokenisations(scores: Iterable[Score]) -> str:
    """Which tokenisation how many directions were scored with, and with which sacreBLEU."""
    found = [re.findall(r"(tok|version|case):([^|]*)", score.signature) for score in scores]
    counts = Counter(", ".join(f"{key} {value}" for key, value in fields) for fields in found)
    return "; ".join(f"{text} ({count} directions)" for text, count in counts.most_common())


def _csv(
    directions: Sequence[Direction],
    scores: Mapping[Direction, Score],
    training_lines: Mapping[str, int],
) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    head = ["direction", "source", "target", "zero_shot", "class", "training_lines", "lines"]
    writer.writerow([*head, "bleu", "chrf", "off_target", "off_target_floor", "bleu_signature"])
    for direction in directions:
        score = scores.get(direction)
        own = (
            [score.lines, score.bleu, score.chrf, score.off_target, score.off_target_floor]
            if score
            else [None] * 5
        )
        lines = pair_lines(direction, training_lines)
        level = direction_class(direction, training_lines)
        unseen = is_zero_shot(direction, score, training_lines)
        row = [direction, *direction, unseen, level, lines, *own, score and score.signature]
        writer.writerow("" if cell is None else str(cell) for cell in row)
    return stream.getvalue()


def _list(names: Sequence[object], limit: int = 12) -> str:
    shown = ", ".join(map(str, names[:limit]))
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")


def summarise(
    folder: Path,
    expected: Sequence[str] = (),
    training_lines: Mapping[str, int] | None = None,
    published: str | None = None,
) -> str:
    """Write table.md, table.csv and summary.json of a folder, and return a readable table.

    Arguments:
        expected: the directions that there should be, such as "de-en"; by default those there are
        training_lines: training lines by pair or direction, for the resource classes
        published: a name in PAPER, to show the paper's numbers beside ours

    Raises FileNotFoundError for a folder without any score, ValueError for a damaged score.
    """
    known = training_lines or {}
    there = read_scores(folder)
    wanted = list(dict.fromkeys(map(Direction.parse, expected))) or sorted(there)
    scores = {direction: there[direction] for direction in wanted if direction in there}
    if not scores:
        raise FileNotFoundError(
            f"{folder} holds no scores (SRC-TGT.json) of {'the expected ' * bool(expected)}directions"
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
    if published:
        tables.append(paper_table(averages, published))
        others = sum("tok:13a" not in score.signature for score in scores.values())
        if published == "opus100" and others:
            tables.append(f"The paper used 13a throughout; {others} directions here do not.")
    legend = "BLEU by direction (* zero-shot, ? still to be scored):"
    parts = [*notes, *tables, *filter(None, [by_language]), legend, full]
    write_text(folder / "table.md", "\n\n".join(parts) + "\n")
    write_text(folder / "table.csv", _csv(wanted, scores, known))
    summary = {
        "complete": not missing,
        "directions": len(scores),
        "expected": len(wanted),
        "missing": list(map(str, missing)),
        "left_out": list(map(str, surplus)),
        "averages": {item.name: item.record() for item in averages},
        "tokenisation": tokenisations(scores.values()),
    }
    write_text(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    if len(languages) <= WIDEST_MATRIX:
        return "\n\n".join([*notes, legend, full, *tables])
    return "\n\n".join([*filter(None, [by_language]), *notes, *tables])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `deepnet directions`."""
    parser.add_argument("folder", type=Path, help="folder of SRC-TGT.json")
    parser.add_argument("--data", type=Path, help="data folder: which directions, training lines")
    parser.add_argument("--split", default="test", help="part of the data folder (test)")
    parser.add_argument("--expect", type=Path, help="file with one direction a line, as in de-en")
    parser.add_argument("--paper", choices=sorted(PAPER), help="show the paper's numbers beside")


def run(args: argparse.Namespace) -> int:
    """Print the table of a folder; exit status 1 where directions are still to be scored."""
    expected: list[str] = []
    lines: dict[str, int] = {}
    if args.data is not None:
        data = DataFolder.open(args.data)
        expected = list(map(str, data.directions(args.split)))
        lines = data.record.get("lines", {}).get("train", {})
    if args.expect is not None:
        expected = args.expect.read_text(encoding="utf-8").split()
    if not args.folder.is_dir():
        raise FileNotFoundError(f"there is no folder {args.folder}")
    print(summarise(args.folder, expected, lines, args.paper))
    print(f"written: {args.folder}/table.md, table.csv, summary.json", file=sys.stderr)
    complete = json.loads((args.folder / "summary.json").read_text(encoding="utf-8"))["complete"]
    return 0 if complete else 1
