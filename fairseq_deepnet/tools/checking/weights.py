"""How weights start: expected against measured standard deviation of every kind of parameter."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from fairseq_deepnet.anatomy import Stack, kind_of, projections
from fairseq_deepnet.schemes import Place, Role, Sublayer
from fairseq_deepnet.tools.checking.causes import (
    Weight,
    explain_bias,
    explain_end,
    explain_weight,
    mistakes_of,
)
from fairseq_deepnet.tools.checking.claim import Claim, FairseqStart, end_factors, xavier_std
from fairseq_deepnet.tools.checking.findings import Fault, Row
from fairseq_deepnet.tools.checking.words import listed, plural

STANDARD_ERRORS: Final = 5
FLOOR: Final = 0.002
"""A ratio of standard deviations may be off by so many standard errors, plus so much."""


def tolerance(count: int, errors: float = STANDARD_ERRORS) -> float:
    """Of the std of `count` normal draws, relative; that of uniform ones varies less."""
    return errors / math.sqrt(2 * count) + FLOOR


def rms(x: Tensor) -> float:
    """Root mean square in float64: the standard deviation around 0."""
    return float(x.detach().double().square().mean().sqrt())


def check_linears(stack: Stack, claim: Claim) -> tuple[list[Row], list[Fault]]:
    """Rows and faults of the linear maps' weights in one stack."""
    kinds: dict[tuple[Sublayer, Role], list[tuple[Place, nn.Linear]]] = defaultdict(list)
    for index, branch, role, linear in stack.linears():
        kinds[branch.sublayer, role].append((Place(stack.side, index), linear))
    rows, off = [], []
    for (sublayer, role), places in kinds.items():
        start = claim.starts[stack.side]
        expected = [start.weight(place, sublayer, role, linear) for place, linear in places]
        measured = [rms(linear.weight) for _, linear in places]
        xavier = [xavier_std(linear) for _, linear in places]
        sizes = [linear.weight.numel() for _, linear in places]
        row, layers = _row(kind_of(sublayer, role), expected, measured, sizes, xavier)
        rows.append(row)
        if not row.fine:
            linear = places[0][1]
            off.append(Weight(row, stack.side, sublayer, role, linear, tuple(layers), sum(sizes)))
    return rows, _merge(stack, off, claim)


def _row(
    name: str,
    expected: Sequence[float],
    measured: Sequence[float],
    sizes: Sequence[int],
    xavier: Sequence[float] = (),
) -> tuple[Row, list[int]]:
    """A row, and the layers that are off by themselves."""
    layers = []
    pooled, count = 0.0, 0
    for index, (want, have, size) in enumerate(zip(expected, measured, sizes, strict=True)):
        if want == 0 or not math.isfinite(have):
            wrong = have != 0
        else:
            pooled += size * (have / want) ** 2
            count += size
            wrong = abs(have / want - 1) > tolerance(size)
        if wrong:
            layers.append(index)
    ratio = math.sqrt(pooled / count) if count else None
    fine = not layers and (ratio is None or abs(ratio - 1) <= tolerance(count))
    row = Row(
        name,
        tuple(expected),
        tuple(measured),
        tuple(e / x for e, x in zip(expected, xavier, strict=False)),
        tuple(m / x for m, x in zip(measured, xavier, strict=False)),
        ratio,
        tolerance(count) if count else 0.0,
        fine,
    )
    return row, layers


def _merge(stack: Stack, off: Sequence[Weight], claim: Claim) -> list[Fault]:
    """One fault for all kinds that are off for the same reason."""
    source = mistakes_of(claim.schemes[stack.side]).layer_source
    if len(off) > 1 and (fault := _all_stock(stack, source)) is not None:
        return [fault]
    groups: dict[tuple[str, str, tuple[int, ...]], list[Weight]] = defaultdict(list)
    for weight in off:
        layers = () if len(weight.layers) in (0, len(stack.layers)) else weight.layers
        groups[explain_weight(weight, claim), weight.expected, layers].append(weight)
    faults = []
    for (cause, expected, layers), group in groups.items():
        names = ", ".join(weight.row.name for weight in group)
        inside = f" in {plural('layer', layers)}" if layers else ""
        found = ", ".join(dict.fromkeys(weight.found for weight in group))
        where = f"{stack.side.value} {names}{inside}"
        faults.append(Fault("weights", where, found, expected, cause, source))
    return faults


def _all_stock(stack: Stack, source: str) -> Fault | None:
    """One fault for a stack whose every linear map starts as stock fairseq's does."""
    for same_dim in (True, False):
        start = FairseqStart(same_dim)
        if all(
            abs(
                rms(linear.weight)
                / start.weight(Place(stack.side, index), branch.sublayer, role, linear)
                - 1
            )
            <= tolerance(linear.weight.numel())
            for index, branch, role, linear in stack.linears()
        ):
            return Fault(
                "weights",
                f"{stack.side.value}, all linear maps",
                "start as in stock fairseq (q, k, v Xavier-uniform with gain 0.707, out_proj with"
                " 1, fc1 and fc2 nn.Linear's default)",
                "the gains of the table above",
                "stock initialisation left in place",
                source,
            )
    return None


def check_biases(stack: Stack, claim: Claim) -> tuple[list[Row], list[Fault]]:
    """Biases of the linear maps: one row for those that start at 0, one for the others."""
    scheme, start = claim.schemes[stack.side], claim.starts[stack.side]
    groups: dict[bool, list[tuple[str, float, nn.Linear]]] = defaultdict(list)
    missing: list[str] = []
    unwanted: list[str] = []
    for _, branch, role, linear in stack.linears():
        name = kind_of(branch.sublayer, role)
        if linear.bias is None:
            missing.append(name)
        elif not scheme.bias:
            unwanted.append(name)
        else:
            std = start.bias(branch.sublayer, role, linear)
            groups[std == 0].append((name, std, linear))
    rows, faults = [], []
    for names, text in ((unwanted, "have biases"), (missing, "have no biases")):
        if names and (scheme.bias or names is unwanted):
            where = f"{stack.side.value} {_without_repeats(names)}"
            said = "biases" if scheme.bias else "none"
            faults.append(
                Fault("structure", where, text, said, "", mistakes_of(scheme).layer_source)
            )
    for zero, members in groups.items():
        names = [name for name, _, _ in members]
        expected = [std for _, std, _ in members]
        measured = [rms(linear.bias) for _, _, linear in members]
        sizes = [linear.bias.numel() for _, _, linear in members]
        roles = _without_repeats([name.rpartition(".")[2] for name in names])
        label = f"biases of {roles}" if len(groups) > 1 else "biases of linear maps"
        row, wrong = _row(f"{label} ({len(names)})", expected, measured, sizes)
        ends = [tuple(dict.fromkeys((min(v), max(v)))) for v in (expected, measured)]
        rows.append(dataclasses.replace(row, expected=ends[0], measured=ends[1]))
        if not row.fine:
            bad = [members[index] for index in wrong] or members
            name = f"{stack.side.value} biases of {_without_repeats([name for name, _, _ in bad])}"
            largest = max(rms(linear.bias) for _, _, linear in bad)
            found = f"std up to {largest:.3g}"
            want = "0" if zero else f"{min(expected):.3g} to {max(expected):.3g}"
            faults.append(Fault("biases", name, found, want, explain_bias(bad, claim, stack.side)))
    return rows, faults


def _without_repeats(names: Sequence[str]) -> str:
    """All of them, each once: there are few kinds."""
    return ", ".join(dict.fromkeys(names))


def check_ends(
    model: nn.Module, stacks: Sequence[Stack], claim: Claim
) -> tuple[list[Row], list[Fault]]:
    """Embeddings, learned positions and vocabulary projections."""
    factors = end_factors(claim, stacks)
    rows: list[Row] = []
    faults: list[Fault] = []
    first: dict[int, str] = {}
    all_modules = model.named_modules(remove_duplicate=False)
    tables = [(n, m, m.padding_idx) for n, m in all_modules if _is_table(m)]
    ends = [*tables, *((name, module, None) for name, module in projections(model))]
    for name, module, padding in ends:
        weight = module.weight
        assert isinstance(weight, Tensor)
        if id(weight) in first:
            rows.append(Row(name, (), (), note=f"tied to {first[id(weight)]}"))
            continue
        first[id(weight)] = name
        std = claim.table_std(weight.size(1)) * factors.get(id(weight), 1.0)
        body = weight.detach()
        if isinstance(padding, int):
            if body[padding].any():
                faults.append(
                    Fault("embeddings", name, f"its padding row {padding} is not zero", "zeros")
                )
            body = torch.cat([body[:padding], body[padding + 1 :]])
        row, _ = _row(name, [std], [rms(body)], [body.numel()])
        rows.append(row)
        if not row.fine:
            cause = explain_end(rms(body), std, body.numel(), claim, is_projection=padding is None)
            faults.append(Fault("embeddings", name, f"std {rms(body):.4g}", f"{std:.4g}", cause))
    return rows, faults


def _is_table(module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding) and isinstance(module.weight, nn.Parameter)


def check_norms(name: str, model: nn.Module) -> tuple[list[Row], list[Fault]]:
    """LayerNorms below `model`, called `name` in reports: weights 1, biases 0."""
    norms = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.LayerNorm)]
    norms = [(n, m) for n, m in norms if m.weight is not None]
    if not norms:
        return [], []
    faults = []
    checks: list[tuple[str, float, Callable[[nn.LayerNorm], Tensor | None]]] = [
        ("weights", 1.0, lambda norm: norm.weight),
        ("biases", 0.0, lambda norm: norm.bias),
    ]
    rows = []
    for what, value, of in checks:
        tensors = [(n, tensor) for n, m in norms if (tensor := of(m)) is not None]
        measured = [float((tensor.detach() - value).abs().max()) + value for _, tensor in tensors]
        wrong = [n for (n, _), have in zip(tensors, measured, strict=True) if have != value]
        label = f"LayerNorms' {what} ({len(tensors)}), farthest from {value:g}"
        fine = not wrong
        rows.append(Row(label, (value,), (max(measured, default=value),), fine=fine))
        if wrong:
            where = f"{name} LayerNorms' {what}"
            shown = listed(wrong)
            faults.append(Fault("norms", where, f"not {value:g} in {shown}", f"{value:g}"))
    return rows, faults
