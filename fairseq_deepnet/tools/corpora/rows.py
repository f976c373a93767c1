"""What is done to one split of one pair of a multilingual corpus: cleaned, then binarised.

Each step writes its files under temporary names and, last of all, a JSON with what it counted: a
row that has one is done.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairseq_deepnet.files import write_json
from fairseq_deepnet.tools.corpora import clean, subwords, text
from fairseq_deepnet.tools.corpora.pairs import Row, is_held_out


def _keep(pairs: Iterator[tuple[str, str]], odd: Counter[str]) -> Iterator[tuple[str, str]]:
    """Pairs of valid or test as they are, without line ends inside a line; counts what is odd."""
    for pair in pairs:
        odd["blank"] += any(text.is_blank(line) for line in pair)
        odd["carriage return"] += any("\r" in line for line in pair)
        yield pair[0].replace("\r", " "), pair[1].replace("\r", " ")


def clean_row(row: Row, out: Path, limits: clean.Limits) -> dict[str, Any]:
    """Write OUT/NAME.LANGUAGE for both languages and then OUT/NAME.json, the counts."""
    counted: Counter[str] = Counter()
    pairs = clean.read_pairs(*row.sides())
    if row.split == "train" or row.held_out:
        pairs = clean.clean_train(pairs, limits, counted)
        if row.held_out:
            wanted = row.split == "valid"
            pairs = (pair for n, pair in enumerate(pairs) if is_held_out(n) == wanted)
    else:
        pairs = _keep(pairs, counted)
    paths = [out / f"{row.name}.{language}" for language in row.pair]
    parts = [path.with_name(path.name + ".part") for path in paths]
    kept = 0
    with (
        parts[0].open("w", encoding="utf-8", newline="\n") as first,
        parts[1].open("w", encoding="utf-8", newline="\n") as second,
    ):
        for left, right in pairs:
            first.write(left + "\n")
            second.write(right + "\n")
            kept += 1
    if not kept:
        raise ValueError(f"no training pair of {row.prefix} is left ({dict(counted)})")
    for part, path in zip(parts, paths, strict=True):
        part.replace(path)
    facts: dict[str, Any] = {"kept": kept, "held_out": row.held_out}
    facts["dropped" if row.split == "train" or row.held_out else "odd"] = dict(+counted)
    write_json(out / f"{row.name}.json", facts)
    return facts


def binarise_row(row: Row, source: Path, model: Path, out: Path) -> dict[str, Any]:
    """Write OUT/NAME.LANGUAGE.{bin,idx} for both languages and then OUT/NAME.json."""
    from fairseq_deepnet.tools.corpora.binarise import binarise

    processor = subwords.load_model(model)
    facts = {}
    for language in row.pair:
        name = f"{row.name}.{language}"
        facts[language] = dataclasses.asdict(binarise(processor, source / name, out / name))
    write_json(out / f"{row.name}.json", facts)
    return facts
