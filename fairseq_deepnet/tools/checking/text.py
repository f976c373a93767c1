"""A check as people read it: a section a side, then what is wrong, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from fairseq_deepnet.tools.checking.findings import Findings, Row, SideFindings

MARKS = {True: "ok", False: "OFF", None: ""}


def as_text(found: Findings) -> str:
    """Everything that `deepnet check` says."""
    parts = [f"{found.subject}: {found.parameters:,} parameters\njudged as {found.claim}"]
    parts += [_side(side, found.judged) for side in found.sides]
    if found.rows:
        parts.append("\n".join(["Outside the layers", *_weights(found.rows, found.judged)]))
    if found.notes:
        parts.append("\n".join(["Notes", *(f"  {note}" for note in found.notes)]))
    return "\n\n".join([*parts, _verdict(found)])


def _side(side: SideFindings, judged: bool) -> str:
    lines = [f"{side.side.value.capitalize()}: {side.layers} layers, {side.scheme}"]
    facts = [
        ("alpha", side.alpha, side.expected_alpha),
        ("beta (gain of v_proj, out_proj, fc1, fc2)", side.beta, side.expected_beta),
        ("LayerNorm", side.norm, side.expected_norm),
    ]
    rows = [("", "found", "expected")] + [fact for fact in facts if fact[1] or fact[2]]
    lines += _grid(rows, ruled=False)
    if side.growth is not None:
        low, high = side.growth
        lines.append(f"  RMS of the stream: {low:.3g} before the first layer, {high:.3g} after all")
    lines.append("")
    joins = [(row.name, row.found, row.expected, MARKS[row.fine]) for row in side.joins]
    lines += _grid([("sublayer", "found", "expected", ""), *joins])
    lines.append("")
    lines += _weights(side.rows, judged)
    return "\n".join(lines)


def _weights(rows: Sequence[Row], judged: bool) -> list[str]:
    if not judged:
        cells = [(row.name, _span(row.measured) or row.note) for row in rows]
        return _grid([("parameters", "measured std"), *cells])
    heading = (
        "parameters",
        "expected std",
        "measured std",
        "expected gain",
        "measured gain",
        "ratio",
        "",
    )
    table = [heading]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        table.append(
            (
                row.name,
                _span(row.expected),
                _span(row.measured),
                _span(row.gain, 3),
                _span(row.measured_gain, 3) if row.gain else "",
                ratio,
                row.note or MARKS[row.fine],
            )
        )
    return _grid(table)


def _span(values: Sequence[float], digits: int = 4) -> str:
    """One number for all layers, or the bottom's and the top's where depth decides."""
    if not values:
        return ""
    texts = [f"{value:.{digits}g}" for value in values]
    if len(set(texts)) == 1:
        return texts[0]
    middle = sum(values) / len(values)
    steady = all(abs(b - a) <= 0.05 * abs(middle) for a, b in pairwise(values))
    near = max(values) - min(values) <= 0.1 * abs(middle)
    if near and steady:
        return f"{middle:.{digits}g}"
    return f"{texts[0]}..{texts[-1]}"


def _grid(rows: Sequence[Sequence[str]], ruled: bool = True) -> list[str]:
    """Aligned columns, indented."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = [
        "  " + "  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    rule = "  " + "-" * (sum(widths) + 2 * (len(widths) - 1))
    return [lines[0], rule, *lines[1:]] if ruled else lines


def _verdict(found: Findings) -> str:
    if found.is_fine:
        left_out = "" if found.judged else " (initial weights not judged)"
        return f"Verdict: as claimed{left_out}"
    count = len(found.faults)
    lines = [f"Verdict: OFF, {count} fault{'s' if count > 1 else ''}"]
    lines += [f"  {number}. {f.sentence()}" for number, f in enumerate(found.faults, 1)]
    sources = list(dict.fromkeys(fault.source for fault in found.faults if fault.source))
    lines += [f"  [{source}]" for source in sources]
    return "\n".join(lines)
