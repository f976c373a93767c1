"""Initial weights beside what a claim says of them: standard deviations around 0."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from fairseq_deepnet.anatomy import Stack, kind_of, projections
from fairseq_deepnet.schemes import Place, Side
from fairseq_deepnet.schemes.base import VALUE_PATH
from fairseq_deepnet.tools.checking.claims import Claim, end_factors, initial_std, xavier_std
from fairseq_deepnet.tools.checking.findings import (
    Fault,
    Findings,
    WeightRow,
    inside,
    listed,
)
from fairseq_deepnet.tools.checking.measure import rms

STANDARD_ERRORS: Final = 5
FLOOR: Final = 0.002
"""A ratio of standard deviations may be off by so many standard errors, plus so much."""
ONE_GAIN: Final = 0.01
"""Gains that differ by less are shown as one."""


class DrawnMap(NamedTuple):
    """A linear map, its kind in reports, and the deviations that weight and bias start with."""

    kind: str
    linear: nn.Linear
    weight_std: float
    bias_std: float


def check_weights(model: nn.Module, stacks: Sequence[Stack], claim: Claim, found: Findings) -> None:
    """Add rows of all parameters, and faults where they can be judged."""
    faults: list[Fault] = []
    for stack, side in zip(stacks, found.sides, strict=True):
        maps = drawn_maps(stack, claim)
        side.rows += check_linears(stack.side, maps, faults)
        side.rows += check_biases(stack.side, maps, claim.schemes[stack.side].bias, faults)
        side.rows += check_norms(stack, faults)
        side.beta, side.expected_beta = betas(side.rows)
    found.rows += check_ends(model, stacks, claim, faults)
    if not found.judged:
        # trained weights have no expectation; whether there are biases at all still has one
        faults = [fault for fault in faults if fault.kind == "structure"]
        found.rows = shown_only(found.rows)
        for side in found.sides:
            side.rows, side.expected_beta = shown_only(side.rows), ""
    found.faults += faults


def shown_only(rows: Sequence[WeightRow]) -> list[WeightRow]:
    """Return rows of trained weights, of which nothing is expected."""
    nothing: dict[str, Any] = {"expected": (), "gain": (), "ratio": None, "fine": None}
    return [dataclasses.replace(row, **nothing) for row in rows]


def tolerance(count: int) -> float:
    """Return that of the std of `count` normal draws, relative; uniform ones vary less."""
    return STANDARD_ERRORS / math.sqrt(2 * count) + FLOOR


def _row(
    name: str,
    expected: Sequence[float],
    weights: Sequence[Tensor],
    xavier: Sequence[float] = (),
) -> tuple[WeightRow, list[int]]:
    """Return a row, and the layers that are off by themselves."""
    measured, sizes = [rms(weight) for weight in weights], [weight.numel() for weight in weights]
    off, pooled, count = [], 0.0, 0
    for index, (want, have, size) in enumerate(zip(expected, measured, sizes, strict=True)):
        if want == 0 or not math.isfinite(have):
            wrong = have != 0
        else:
            pooled += size * (have / want) ** 2
            count += size
            wrong = abs(have / want - 1) > tolerance(size)
        if wrong:
            off.append(index)
    ratio = math.sqrt(pooled / count) if count else None
    row = WeightRow(
        name,
        tuple(expected),
        tuple(measured),
        tuple(e / x for e, x in zip(expected, xavier, strict=False)),
        tuple(m / x for m, x in zip(measured, xavier, strict=False)),
        ratio,
        tolerance(count) if count else 0.0,
        not off and (ratio is None or abs(ratio - 1) <= tolerance(count)),
    )
    return row, off


def drawn_maps(stack: Stack, claim: Claim) -> list[DrawnMap]:
    """Return the linear maps of a stack and how the claim has them start."""
    start = claim.starts[stack.side]
    return [
        DrawnMap(
            kind_of(branch.sublayer, role),
            linear,
            *initial_std(start, Place(stack.side, index), branch, role),
        )
        for index, branch, role, linear in stack.linears()
    ]


def check_linears(side: Side, maps: Sequence[DrawnMap], faults: list[Fault]) -> list[WeightRow]:
    """Return a row for each kind of linear map; add one fault for kinds that are off alike."""
    kinds: dict[str, list[DrawnMap]] = defaultdict(list)
    for drawn in maps:
        kinds[drawn.kind].append(drawn)
    rows: list[WeightRow] = []
    groups: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for name, members in kinds.items():
        xavier = [xavier_std(drawn.linear) for drawn in members]
        weights = [drawn.linear.weight for drawn in members]
        row, off = _row(name, [drawn.weight_std for drawn in members], weights, xavier)
        rows.append(row)
        if not row.fine:
            which = off or range(len(members))
            found, want = ([g[index] for index in which] for g in (row.measured_gain, row.gain))
            key = inside(off, len(members)), _gain_text(want, len(set(want)) == 1)
            groups[key][name] = _gain_text(found, len(set(want)) == 1)
    for (where, expected), found_of in groups.items():
        found_text = ", ".join(dict.fromkeys(found_of.values()))
        place = f"{side.value} {', '.join(found_of)}{where}"
        faults.append(Fault("weights", place, f"gain {found_text}", f"gain {expected}"))
    return rows


def _gain_text(gains: Sequence[float], uniform: bool) -> str:
    """Return the gain of a kind of weight, pooled where all layers are to have the same."""
    if uniform:
        return f"{math.sqrt(sum(gain**2 for gain in gains) / len(gains)):.3g}"
    return f"{gains[0]:.3g} (bottom) to {gains[-1]:.3g} (top)"


def betas(rows: Sequence[WeightRow]) -> tuple[str, str]:
    """Measured and expected gain of the value path, layers pooled, a range where kinds differ."""
    rows = [
        row for row in rows if row.gain and row.name.split()[0].rpartition(".")[2] in VALUE_PATH
    ]
    texts = []
    for values in ([row.measured_gain for row in rows], [row.gain for row in rows]):
        pooled = [math.sqrt(sum(gain**2 for gain in gains) / len(gains)) for gains in values]
        low, high = min(pooled), max(pooled)
        if high - low <= ONE_GAIN * high:
            low = high = sum(pooled) / len(pooled)
        texts.append(" to ".join(dict.fromkeys(f"{value:.3g}" for value in (low, high))))
    return texts[0], texts[1]


def check_biases(
    side: Side, maps: Sequence[DrawnMap], bias: bool, faults: list[Fault]
) -> list[WeightRow]:
    """Return a row for the biases that start at 0, and one for the others; add their faults."""
    groups: dict[bool, list[tuple[str, float, Tensor]]] = defaultdict(list)
    wrong: dict[str, None] = {}
    for drawn in maps:
        if (drawn.linear.bias is not None) != bias:
            wrong[drawn.kind] = None
        elif bias:
            groups[drawn.bias_std == 0].append((drawn.kind, drawn.bias_std, drawn.linear.bias))
    if wrong:
        texts = ("have no biases", "biases") if bias else ("have biases", "none")
        faults.append(Fault("structure", f"{side.value} {', '.join(wrong)}", *texts))
    rows = []
    for members in groups.values():
        names, expected, biases = zip(*members, strict=True)
        roles = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in names))
        label = f"biases of {roles}" if len(groups) > 1 else "biases of linear maps"
        row, off = _row(f"{label} ({len(names)})", expected, biases)
        rows.append(_ends_only(row))
        if not row.fine:
            bad = off or range(len(members))
            where = ", ".join(dict.fromkeys(names[index] for index in bad))
            found = f"std up to {max(row.measured[index] for index in bad):.3g}"
            want = " to ".join(f"{std:.3g}" for std in rows[-1].expected)
            faults.append(Fault("biases", f"{side.value} biases of {where}", found, want))
    return rows


def _ends_only(row: WeightRow) -> WeightRow:
    """Return the row with the least and the greatest of its numbers."""
    expected, measured = (
        tuple(dict.fromkeys((min(numbers), max(numbers))))
        for numbers in (row.expected, row.measured)
    )
    return dataclasses.replace(row, expected=expected, measured=measured)


def check_norms(stack: Stack, faults: list[Fault]) -> list[WeightRow]:
    """Return rows of a stack's LayerNorms: weights 1, biases 0; add their faults."""
    named = stack.module.named_modules()
    norms = {name: module for name, module in named if isinstance(module, nn.LayerNorm)}
    rows = []
    for attribute, what, value in (("weight", "weights - 1", 1), ("bias", "biases", 0)):
        tensors = {n: t for n, m in norms.items() if (t := getattr(m, attribute)) is not None}
        if not tensors:
            continue
        label = f"LayerNorms' {what} ({len(tensors)})"
        row, off = _row(label, [0.0] * len(tensors), [t - value for t in tensors.values()])
        rows.append(_ends_only(row))
        if off:
            names = listed([list(tensors)[index] for index in off])
            where = f"{stack.side.value} LayerNorms' {attribute}s"
            faults.append(Fault("norms", where, f"not {value} in {names}", f"{value}"))
    return rows


def check_ends(
    model: nn.Module, stacks: Sequence[Stack], claim: Claim, faults: list[Fault]
) -> list[WeightRow]:
    """Return rows of embeddings, learned positions and vocabulary projections; add their faults."""
    factors = end_factors(claim, stacks)
    tables = [
        (name, module, module.padding_idx)
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, nn.Embedding) and isinstance(module.weight, nn.Parameter)
    ]
    rows: list[WeightRow] = []
    first: dict[int, str] = {}
    for name, module, padding in [*tables, *((*pair, None) for pair in projections(model))]:
        weight: Any = module.weight
        if id(weight) in first:
            rows.append(WeightRow(name, note=f"tied to {first[id(weight)]}"))
            continue
        first[id(weight)] = name
        std = claim.embedding_std(weight.size(1)) * factors.get(id(weight), 1.0)
        body = weight.detach()
        if padding is not None:
            if body[padding].any():
                found = f"its padding row {padding} is not zero"
                faults.append(Fault("embeddings", name, found, "zeros"))
            body = torch.cat([body[:padding], body[padding + 1 :]])
        row, _ = _row(name, [std], [body])
        rows.append(row)
        if not row.fine:
            faults.append(Fault("embeddings", name, f"std {rms(body):.4g}", f"{std:.4g}"))
    return rows
