"""`deepnet directions`: a table of scores of many directions beside the paper's numbers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.files import say
from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.evaluation.directions import Summary, number, summarise
from fairseq_deepnet.tools.scores import read_directions
from fairseq_deepnet.tools.tables import markdown

PAPER: Final[dict[str, tuple[str, dict[str, tuple[str, int]]]]] = {
    "opus100": (
        "table2",
        {"x-en": ("X-En", 94), "en-x": ("En-X", 94), "average": ("all supervised", 188)},
    ),
    "wmt": ("table3", {"wmt": ("all", 18)}),
    "opus": ("table3", {"opus": ("all", 30)}),
    "ted": ("table3", {"ted": ("all", 756)}),
    "flores": ("table3", {"flores": ("all", 7482)}),
}
"""Published numbers: name -> the paper's table, and for each of its columns the name of our average
and its number of directions.
"""


def beside_paper(summary: Summary, published: str) -> list[str]:
    """Return our averages below the paper's numbers, and a note if tokenisations differ.

    An average over fewer directions than the paper's states their number.
    """
    if published not in PAPER:
        raise ValueError(f"no published numbers for {published!r}; choose from {', '.join(PAPER)}")
    name, columns = PAPER[published]
    table = paper.table(name)
    ours = {item.name: item for item in summary.averages}
    rows = [[f"{table.source}, BLEU", *(group for group, _ in columns.values())]]
    for key, label in table.names.items():
        rows.append([label, *(str(table.value(key, column)) for column in columns)])
    cells = []
    for group, count in columns.values():
        item = ours.get(group)
        lacks = item is not None and item.present != count
        note = f" (over {item.present:,} of {count:,} directions)" if item and lacks else ""
        cells.append(f"{number(item.means['bleu'])}{note}" if item else "")
    rows.append(["this model", *cells])
    tables = [f"{markdown(rows)}\n\nThe paper's numbers: {table.metric}."]
    differing = sum("tok:13a" not in score.signatures["bleu"] for score in summary.scores)
    if published == "opus100" and differing:
        tables.append(f"The paper used 13a throughout; {differing} directions here do not.")
    return tables


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet directions`."""
    parser.add_argument("folder", type=Path, help="folder of SRC-TGT.json")
    parser.add_argument("--data", type=Path, help="data folder: which directions, training lines")
    parser.add_argument("--split", default="test", help="part of the data folder (test)")
    parser.add_argument("--expect", type=Path, help="file with one direction a line, as in de-en")
    parser.add_argument("--paper", choices=sorted(PAPER), help="show the paper's numbers beside")


def run(args: argparse.Namespace) -> int:
    """Print the table of a folder; exit status 1 if directions are missing."""
    expected: list[Direction] = []
    lines: dict[str, int] = {}
    if args.data is not None:
        data = DataFolder.open(args.data)
        expected = data.directions(args.split)
        lines = data.training_lines()
    if args.expect is not None:
        expected = list(map(Direction.parse, args.expect.read_text(encoding="utf-8").split()))
    if not args.folder.is_dir():
        raise FileNotFoundError(f"there is no folder {args.folder}")
    summary = summarise(args.folder, read_directions(args.folder), expected, lines)
    beside = beside_paper(summary, args.paper) if args.paper else []
    print("\n\n".join([summary.text, *beside]))
    say(f"written: {args.folder}/table.md, summary.json")
    return 0 if summary.is_complete else 1
