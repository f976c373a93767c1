"""The tables of `deepnet directions`: matrix, languages, averages, CSV."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fairseq_deepnet.tools.corpora.folder import Direction
from fairseq_deepnet.tools.evaluation.directions import (
    ENGLISH,
    Average,
    Score,
    direction_class,
    is_zero_shot,
    pair_lines,
)
from fairseq_deepnet.tools.tables import comma_separated, markdown


def number(value: float | None, percent: bool = False) -> str:
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
            row.append(number(score.bleu) if score else "?" * (direction in wanted))
        rows.append([*row, number(scores[out_of].off_target, True) if out_of in scores else ""])
    return markdown(rows)


def averages_table(averages: Sequence[Average]) -> str:
    """The averages, each with the number of directions that it stands for."""
    rows = [["average over", "directions", "BLEU", "chrF", "off-target", "(of references)"]]
    for item in averages:
        count = f"{item.present}" if item.complete else f"{item.present} of {item.expected} !"
        shares = [number(share, True) for share in (item.off_target, item.off_target_floor)]
        if item.off_target is not None and item.off_target_of < item.present:
            shares[0] = f"{shares[0]} (of {item.off_target_of})"
        rows.append([item.name, count, number(item.bleu), number(item.chrf), *shares])
    return markdown(rows)


def tokenisations(scores: Iterable[Score]) -> str:
    """Which tokenisation how many directions were scored with, and with which sacreBLEU."""
    found = [re.findall(r"(tok|version|case):([^|]*)", score.signature) for score in scores]
    counts = Counter(", ".join(f"{key} {value}" for key, value in fields) for fields in found)
    return "; ".join(f"{text} ({count} directions)" for text, count in counts.most_common())


def as_csv(
    directions: Sequence[Direction],
    scores: Mapping[Direction, Score],
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
