"""Compare a model with a claim, and report where the two differ."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor, nn

from fairseq_deepnet.anatomy import PROJECTIONS, TABLE, Layer, Stack, kind_of, projections
from fairseq_deepnet.schemes import NormPlacement, Place, ResidualScheme, Role, Side
from fairseq_deepnet.schemes.base import VALUE_PATH
from fairseq_deepnet.tools.checking.claims import Claim, end_factors, initial_std, xavier_std
from fairseq_deepnet.tools.checking.measure import (
    SAME,
    Backward,
    Fit,
    LayerFit,
    expected_layer,
    fit_residuals,
    random_batch,
    rms,
    run_backward,
    same,
)

HALF_PRECISION_LIMIT: Final = 65504.0
STANDARD_ERRORS: Final = 5
FLOOR: Final = 0.002
"""A ratio of standard deviations may be off by so many standard errors, plus so much."""
ONE_GAIN: Final = 0.01
"""Gains that differ by less are shown as one."""
SMALL: Final = 1e-2
"""What tensors of zeros are moved by, to see what is behind them."""
SHOWN: Final = 3
"""Names of a list that are written out."""
LEARNED: Final = "learned"

NORM_TEXTS: Final = {
    NormPlacement.POST: "after the sum",
    NormPlacement.PRE: "before the branch",
    NormPlacement.NONE: "none",
    None: "in no known place",
}


@dataclasses.dataclass(frozen=True)
class Fault:
    """Something that is not as claimed: in a part of the model, `found` instead of `expected`.

    `kind` is a word to count faults by, such as `weights`.
    """

    kind: str
    where: str
    found: str
    expected: str

    def sentence(self) -> str:
        """The whole in one sentence."""
        return f"{self.where}: {self.found}, expected {self.expected}."


@dataclasses.dataclass(frozen=True)
class WeightRow:
    """Standard deviations around 0 of a kind of parameter, such as `self_attn.q_proj`.

    Args:
        expected, measured: a number a layer, or the least and the greatest of many.
        gain, measured_gain: these over Xavier's; empty for what has none.
        ratio: measured over expected, all layers pooled; None where 0 is expected.
        tolerance: how far `ratio` may be from 1.
        fine: None where nothing is expected.
    """

    name: str
    expected: tuple[float, ...] = ()
    measured: tuple[float, ...] = ()
    gain: tuple[float, ...] = ()
    measured_gain: tuple[float, ...] = ()
    ratio: float | None = None
    tolerance: float = 0.0
    fine: bool | None = None
    note: str = ""


@dataclasses.dataclass(frozen=True)
class ResidualRow:
    """What one sublayer of all layers of a stack makes of stream and branch, as a formula."""

    name: str
    found: str
    expected: str
    fine: bool


@dataclasses.dataclass
class StackFindings:
    """One stack: what is claimed and what was measured."""

    side: Side
    scheme: str
    layers: int
    alpha: str = ""
    expected_alpha: str = ""
    beta: str = ""
    expected_beta: str = ""
    norm: str = ""
    expected_norm: str = ""
    growth: tuple[float, float] | None = None
    residuals: list[ResidualRow] = dataclasses.field(default_factory=list)
    rows: list[WeightRow] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Findings:
    """All of it; `judged` says whether initial weights could be, `rows` are outside the stacks."""

    subject: str
    claim: str
    parameters: int
    judged: bool
    sides: list[StackFindings]
    rows: list[WeightRow]
    notes: list[str]
    faults: list[Fault]

    @property
    def is_fine(self) -> bool:
        return not self.faults


def check_model(
    model: nn.Module,
    stacks: Sequence[Stack],
    claim: Claim,
    subject: str,
    trained: bool = False,
) -> Findings:
    """Check a model, which is not usable afterwards.

    Args:
        model: in float32.
        stacks: where its layers are.
        subject: what it is, in words.
        trained: whether its weights have moved, so that they cannot be judged.

    Raises:
        ValueError: where the forward pass does not reach a layer.
    """
    sides = [
        StackFindings(stack.side, claim.scheme_text(stack.side), len(stack.layers))
        for stack in stacks
    ]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    found = Findings(subject, claim.text, parameters, not trained, sides, [], [], [])
    found.faults += check_finite(model)
    check_weights(model, stacks, claim, found)
    found.faults += check_sharing(model, stacks)
    found.faults += check_copies(model)
    found.faults += check_trainable(model)
    model.double().eval()
    for stack in stacks:
        found.faults += check_sizes(stack, claim.schemes[stack.side])
    check_forward(model, stacks, claim, random_batch(model, stacks), found)
    set_later = any(
        type(scheme).prepare is not ResidualScheme.prepare for scheme in claim.schemes.values()
    )
    if set_later and not trained:
        found.notes.append(
            "the scheme sets a part of its residuals in the first training batch: not set yet"
        )
    return found


def listed(names: Sequence[str]) -> str:
    """A few names, and how many more."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def counted(count: int, noun: str) -> str:
    """`1 tensor`, `2 tensors`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def layer_numbers(numbers: Sequence[int]) -> str:
    """`layer 3`, `layers 0, 2`, `layers 0 to 17`."""
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"layers {numbers[0]} to {numbers[-1]}"
    return f"layer{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def _inside(off: Sequence[int], layers: int) -> str:
    """` in layer 3` where some layers are off, nothing where all are."""
    return f" in {layer_numbers(off)}" if 0 < len(off) < layers else ""


# Initial weights


def check_weights(model: nn.Module, stacks: Sequence[Stack], claim: Claim, found: Findings) -> None:
    """Add rows of all parameters, and faults where they can be judged."""
    faults: list[Fault] = []
    for stack, side in zip(stacks, found.sides, strict=True):
        side.rows += check_linears(stack, claim, faults)
        side.rows += check_biases(stack, claim, faults)
        side.rows += check_norms(stack, faults)
        side.beta, side.expected_beta = _betas(side.rows)
    found.rows += check_ends(model, stacks, claim, faults)
    if not found.judged:
        # trained weights have no expectation; whether there are biases at all still has one
        faults = [fault for fault in faults if fault.kind == "structure"]
        nothing: dict[str, Any] = {"expected": (), "gain": (), "ratio": None, "fine": None}
        parts: list[StackFindings | Findings] = [*found.sides, found]
        for part in parts:
            part.rows = [dataclasses.replace(row, **nothing) for row in part.rows]
        for side in found.sides:
            side.expected_beta = ""
    found.faults += faults


def tolerance(count: int) -> float:
    """Of the std of `count` normal draws, relative; that of uniform ones varies less."""
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


def check_linears(stack: Stack, claim: Claim, faults: list[Fault]) -> list[WeightRow]:
    """Weights of the linear maps, one row a kind; one fault for kinds that are off alike."""
    kinds: dict[str, list[tuple[float, nn.Linear]]] = defaultdict(list)
    for index, branch, role, linear in stack.linears():
        start, place = claim.starts[stack.side], Place(stack.side, index)
        std, _ = initial_std(start, place, branch, role)
        kinds[kind_of(branch.sublayer, role)].append((std, linear))
    rows: list[WeightRow] = []
    groups: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for name, members in kinds.items():
        xavier = [xavier_std(linear) for _, linear in members]
        weights = [linear.weight for _, linear in members]
        row, off = _row(name, [std for std, _ in members], weights, xavier)
        rows.append(row)
        if not row.fine:
            which = off or range(len(members))
            found, want = ([g[index] for index in which] for g in (row.measured_gain, row.gain))
            key = _inside(off, len(members)), _gain_text(want, len(set(want)) == 1)
            groups[key][name] = _gain_text(found, len(set(want)) == 1)
    for (inside, expected), found_of in groups.items():
        where = f"{stack.side.value} {', '.join(found_of)}{inside}"
        found_text = ", ".join(dict.fromkeys(found_of.values()))
        faults.append(Fault("weights", where, f"gain {found_text}", f"gain {expected}"))
    return rows


def _gain_text(gains: Sequence[float], uniform: bool) -> str:
    """The gain of a kind of weight, pooled where all layers are to have the same."""
    if uniform:
        return f"{math.sqrt(sum(gain**2 for gain in gains) / len(gains)):.3g}"
    return f"{gains[0]:.3g} (bottom) to {gains[-1]:.3g} (top)"


def _betas(rows: Sequence[WeightRow]) -> tuple[str, str]:
    """Measured and expected gain of the value path, layers pooled, a range where kinds differ."""
    rows = [row for row in rows if row.gain and row.name.rpartition(".")[2] in VALUE_PATH]
    texts = []
    for values in ([row.measured_gain for row in rows], [row.gain for row in rows]):
        pooled = [math.sqrt(sum(gain**2 for gain in gains) / len(gains)) for gains in values]
        low, high = min(pooled), max(pooled)
        if high - low <= ONE_GAIN * high:
            low = high = sum(pooled) / len(pooled)
        texts.append(" to ".join(dict.fromkeys(f"{value:.3g}" for value in (low, high))))
    return texts[0], texts[1]


def check_biases(stack: Stack, claim: Claim, faults: list[Fault]) -> list[WeightRow]:
    """Biases of the linear maps: one row for those that start at 0, one for the others."""
    side, bias = stack.side.value, claim.schemes[stack.side].bias
    groups: dict[bool, list[tuple[str, float, Tensor]]] = defaultdict(list)
    wrong: dict[str, None] = {}
    for index, branch, role, linear in stack.linears():
        name = kind_of(branch.sublayer, role)
        if (linear.bias is not None) != bias:
            wrong[name] = None
        elif bias:
            start, place = claim.starts[stack.side], Place(stack.side, index)
            _, std = initial_std(start, place, branch, role)
            groups[std == 0].append((name, std, linear.bias))
    if wrong:
        texts = ("have no biases", "biases") if bias else ("have biases", "none")
        faults.append(Fault("structure", f"{side} {', '.join(wrong)}", *texts))
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
            faults.append(Fault("biases", f"{side} biases of {where}", found, want))
    return rows


def _ends_only(row: WeightRow) -> WeightRow:
    """The row with the least and the greatest of its numbers."""
    expected, measured = (
        tuple(dict.fromkeys((min(numbers), max(numbers))))
        for numbers in (row.expected, row.measured)
    )
    return dataclasses.replace(row, expected=expected, measured=measured)


def check_norms(stack: Stack, faults: list[Fault]) -> list[WeightRow]:
    """LayerNorms of a stack: weights 1, biases 0."""
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
    """Embeddings, learned positions and vocabulary projections."""
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


# Which tensors there are


def check_finite(model: nn.Module) -> Iterable[Fault]:
    """Parameters with NaN or infinity; these become 0, so that the rest can be measured."""
    for name, parameter in model.named_parameters():
        broken = ~torch.isfinite(parameter.detach())
        if broken.any():
            found = f"{int(broken.sum())} of {parameter.numel()} numbers are not finite"
            yield Fault("finite", name, found, "numbers")
            with torch.no_grad():
                parameter[broken] = 0.0


def extra_parameters(layer: Layer) -> list[nn.Parameter]:
    """The parameters of a layer besides those of its linear maps and LayerNorms."""
    known = {id(p) for b in layer.branches for m in b.linears.values() for p in m.parameters()}
    norms = [branch.norm for branch in layer.branches if branch.norm is not None]
    known |= {id(p) for norm in norms for p in norm.parameters()}
    return [p for p in layer.module.parameters() if id(p) not in known]


def check_sharing(model: nn.Module, stacks: Sequence[Stack]) -> list[Fault]:
    """Tensors in two places that are no tie of embeddings and no residual's within a layer.

    Whether these are to be shared shows in their number, which `check_sizes` compares.
    """
    layers = [layer for stack in stacks for layer in stack.layers]
    extras = {id(p): f"{layer.name}." for layer in layers for p in extra_parameters(layer)}
    places: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        places[id(parameter)].append(name)
    shared = [
        names
        for key, names in places.items()
        if len(names) > 1
        and not all(name.rsplit(".", 2)[-2] in (TABLE, *PROJECTIONS) for name in names)
        and not all(name.startswith(extras.get(key, "no layer")) for name in names)
    ]
    if not shared:
        return []
    found = f"one tensor in {len(shared[0])} places ({listed(shared[0])})"
    rest = f", and {len(shared) - 1} more such tensors" if len(shared) > 1 else ""
    return [Fault("sharing", shared[0][0], found + rest, "a tensor of its own")]


def check_copies(model: nn.Module) -> list[Fault]:
    """Different tensors with the same numbers, where numbers are random."""
    seen: dict[tuple[object, ...], list[tuple[str, Tensor]]] = defaultdict(list)
    pairs: dict[tuple[str, str], list[str]] = defaultdict(list)

    def owner(name: str) -> str:
        """The layer that a parameter belongs to, or the parameter itself."""
        parts = name.split(".")
        inside = "layers" in parts[:-2]
        return ".".join(parts[: parts.index("layers") + 2]) if inside else name

    for name, parameter in model.named_parameters():
        body = parameter.detach().flatten()
        if body.numel() < 2 or bool((body == body[0]).all()):
            continue
        key = (tuple(parameter.shape), *body[:4].tolist(), float(body.double().sum()))
        for other, tensor in seen[key]:
            if torch.equal(tensor, body):
                pairs[owner(other), owner(name)].append(name)
                break
        seen[key].append((name, body))
    return [
        Fault("copies", copy, f"a copy of {original} ({listed(names)})", "weights of its own")
        for (original, copy), names in pairs.items()
    ]


def check_trainable(model: nn.Module) -> list[Fault]:
    """What the optimiser will not train: frozen parameters, tensors that are not registered."""

    def leaves(value: object) -> Iterable[Tensor]:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, nn.Module):
            yield from value.parameters()
        elif isinstance(value, list | tuple | dict):
            for item in value.values() if isinstance(value, dict) else value:
                yield from leaves(item)

    faults = []
    if frozen := [name for name, p in model.named_parameters() if not p.requires_grad]:
        text = f"{counted(len(frozen), 'parameter')} without requires_grad"
        faults.append(Fault("reach", listed(frozen), text, "trained by the optimiser"))
    registered = {id(parameter) for parameter in model.parameters()}
    hidden = [
        f"{name}.{attribute}"
        for name, module in model.named_modules()
        for attribute, value in vars(module).items()
        if not attribute.startswith("_")
        for tensor in leaves(value)
        if tensor.requires_grad and tensor.is_leaf and id(tensor) not in registered
    ]
    if hidden:
        names = listed(list(dict.fromkeys(hidden)))
        text = f"{counted(len(hidden), 'trainable tensor')} outside model.parameters()"
        due = "registered with the model (in a plain list or attribute they are not)"
        faults.append(Fault("reach", names, text, due))
    return faults


def check_sizes(stack: Stack, scheme: ResidualScheme) -> list[Fault]:
    """Whether layers carry as many numbers besides linear maps and norms as the scheme says."""
    off: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, layer in enumerate(stack.layers):
        place, branches = Place(stack.side, index), layer.branches
        fc2 = branches[-1].linears[Role.FC2]
        sublayers = tuple(branch.sublayer for branch in branches)
        parts: list[nn.Module | None] = [
            *scheme.build_residuals(place, sublayers, fc2.out_features).values(),
            *scheme.build_ffn_transforms(place, fc2.in_features),
        ]
        for branch in branches[:-1]:
            heads = getattr(branch.entry, "num_heads", 1)
            sizes = heads, fc2.out_features
            parts.append(scheme.build_head_transform(place, branch.sublayer, *sizes))
        due = {id(p): p.numel() for part in parts if part is not None for p in part.parameters()}
        sizes = sum(p.numel() for p in extra_parameters(layer)), sum(due.values())
        if sizes[0] != sizes[1]:
            off[sizes].append(index)
    faults = []
    for (found, expected), layers in off.items():
        text = f"{counted(found, 'number')} besides linear maps and LayerNorms"
        where = f"{stack.side.value} {layer_numbers(layers)}"
        faults.append(Fault("extras", where, text, str(expected)))
    return faults


# What a forward and a backward pass show


def check_forward(
    model: nn.Module,
    stacks: Sequence[Stack],
    claim: Claim,
    batch: dict[str, Tensor],
    found: Findings,
) -> None:
    """Residual connections, the growth of the stream, and which parameters matter."""
    backward = run_backward(model, stacks, batch)
    fits, normed = fit_residuals(model, stacks, batch)
    for stack, side, layers, final in zip(stacks, found.sides, fits, normed, strict=True):
        streams, scheme = backward.streams[stack.name], claim.schemes[stack.side]
        found.faults += check_residuals(stack, side, layers, scheme, found.judged)
        found.faults += check_final_norm(side, final, claim.final_norms[stack.side])
        if scheme.embedding_norm and not isinstance(
            getattr(stack.module, "layernorm_embedding", None), nn.LayerNorm
        ):
            texts = "no LayerNorm after the embeddings", "a LayerNorm after the embeddings"
            found.faults.append(Fault("norms", f"{stack.side.value} embeddings", *texts))
        found.faults += check_inputs(stack, scheme, streams)
        side.growth = (rms(streams[0][0]), rms(streams[-1][1]))
        if not side.growth[1] < HALF_PRECISION_LIMIT:
            found.notes.append(
                f"the {stack.side.value}'s stream grows to an RMS of {side.growth[1]:.2g} in an"
                f" untouched forward pass; fp16 ends at {HALF_PRECISION_LIMIT:.0f}"
            )
    if not backward.finite:
        found.faults.append(Fault("finite", "output", "not finite on a random batch", "numbers"))
    check_gradients(model, stacks, batch, backward, found)


def check_residuals(
    stack: Stack,
    side: StackFindings,
    layers: Sequence[LayerFit],
    scheme: ResidualScheme,
    judged: bool,
) -> list[Fault]:
    """Compare what sublayers do with what the scheme makes of the same stream and branch."""
    sublayers = tuple(branch.sublayer for branch in stack.layers[0].branches)
    width = stack.layers[0].branches[-1].linears[Role.FC2].out_features
    expected_layers, learned = [], False
    for index, layer in enumerate(layers):
        residuals = scheme.build_residuals(Place(stack.side, index), sublayers, width)
        learned |= any(list(residual.state_dict()) for residual in residuals.values())
        own = [residuals[sublayer] for sublayer in sublayers]
        expected_layers.append(expected_layer(own, scheme, layer))
    judged |= not learned
    fits, due = ([layer.sublayers for layer in some] for some in (layers, expected_layers))
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for position, sublayer in enumerate(sublayers):
        have, want = ([layer[position] for layer in layers] for layers in (fits, due))
        off = [
            index
            for index, (a, b) in enumerate(zip(have, want, strict=True))
            if a.norm is not b.norm or (judged and not (same(a.z, b.z) and same(a.entry, b.entry)))
        ]
        expected = formula(want) if judged else LEARNED
        side.residuals.append(ResidualRow(sublayer.value, formula(have), expected, not off))
        if off:
            measured, wanted = ([some[index] for index in off] for some in (have, want))
            key = _inside(off, len(fits)), formula(measured), formula(wanted)
            groups[key].append(sublayer.value)
    side.alpha, expected = (
        factor([fit.residual for layer in layers for fit in layer]).strip() or "1"
        for layers in (fits, due)
    )
    side.expected_alpha = expected if judged else LEARNED
    side.norm = ", ".join(dict.fromkeys(NORM_TEXTS[fit.norm] for layer in fits for fit in layer))
    side.expected_norm = NORM_TEXTS[scheme.norm]
    faults = [
        Fault("residual", f"{stack.side.value} {', '.join(names)}{inside}", found, expected)
        for (inside, found, expected), names in groups.items()
    ]
    beside = [
        index
        for index, (a, b) in enumerate(zip(layers, expected_layers, strict=True))
        if judged and not same(a.output[:, width:], b.output[:, width:])
    ]
    if beside:
        where = f"{stack.side.value} {layer_numbers(beside)}"
        texts = "give another tensor beside x", f"{counted(scheme.streams - 1, 'tensor')} beside x"
        faults.append(Fault("inputs", where, *texts))
    return faults


def formula(fits: Sequence[Fit]) -> str:
    """A sublayer of all layers, such as `LN(1.999 x + G(x))`; ranges where layers differ."""
    norms = list(dict.fromkeys(fit.norm for fit in fits))
    if len(norms) > 1:
        return " or ".join(formula([f for f in fits if f.norm is norm]) for norm in norms)
    inner = "x"
    if norms[0] is NormPlacement.PRE:
        inner = f"{factor([(fit.inner, fit.inner) for fit in fits])}LN(x)"
    exact = all(fit.error <= SAME for fit in fits)
    branch = f"{factor([fit.branch for fit in fits])}G({inner})" if exact else f"T(G({inner}))"
    total = f"{factor([fit.residual for fit in fits])}x + {branch}"
    if any(fit.bottom for fit in fits):
        total = f"{factor([(fit.bottom, fit.bottom) for fit in fits])}input + {total}"
    if norms[0] is None:
        return f"{total}, its LayerNorm neither before the branch nor after the sum"
    return f"LN({total})" if norms[0] is NormPlacement.POST else total


def factor(ends: Sequence[tuple[float, float]]) -> str:
    """`1.999 `, `1.2..3.4 `, or nothing for 1."""
    least, greatest = min(low for low, _ in ends), max(high for _, high in ends)
    texts = [f"{value:.4g}" for value in (least, greatest)]
    texts = list(dict.fromkeys("0" if abs(float(text)) < SAME else text for text in texts))
    return "" if texts == ["1"] else f"{'..'.join(texts)} "


def check_final_norm(side: StackFindings, normed: bool, due: bool) -> list[Fault]:
    """Whether a LayerNorm follows the stack where one should: Pre-LN needs one."""
    side.norm += ", and after the stack" if normed else ""
    side.expected_norm += ", and after the stack" if due else ""
    texts = {True: "a LayerNorm after the stack", False: "no LayerNorm after the stack"}
    where = f"{side.side.value} output"
    return [] if normed is due else [Fault("norms", where, texts[normed], texts[due])]


def check_inputs(
    stack: Stack, scheme: ResidualScheme, streams: Sequence[Sequence[Tensor]]
) -> list[Fault]:
    """Whether each layer reads the output of the one below, or a combination where that is due."""
    plain = all(same(below[1], above[0]) for below, above in pairwise(streams))
    due = scheme.build_combination(stack.side, streams[0][0].size(-1)) is None
    if len(streams) < 2 or plain is due:
        return []
    found = "each reads the output of the one below" if plain else "read more than the layer below"
    expected = "the output of the one below" if due else "a combination of all outputs below"
    return [Fault("inputs", f"{stack.side.value} layers", found, expected)]


def check_gradients(
    model: nn.Module,
    stacks: Sequence[Stack],
    batch: dict[str, Tensor],
    before: Backward,
    found: Findings,
) -> None:
    """Parameters without a gradient.

    Schemes start some tensors at 0, and what is behind them has no gradient in the first update.
    So those tensors are moved a little, and only what still has none is at fault.
    """
    if before.unused:
        text = f"{counted(len(before.unused), 'parameter')} never used in the forward pass"
        found.faults.append(Fault("unused", listed(before.unused), text, "used"))
    if not before.zero or not before.finite:
        return
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                fan = parameter.size(-1) if parameter.dim() > 1 else 1
                parameter.add_(torch.randn_like(parameter) * SMALL / fan**0.5)
    dead = run_backward(model, stacks, batch).zero
    if later := len(set(before.zero) - set(dead)):
        found.notes.append(
            f"{later} parameter tensors get no gradient in the first update, because others start"
            " at 0; they do once those have moved"
        )
    if dead:
        text = f"{counted(len(dead), 'parameter')} with a gradient of 0"
        found.faults.append(Fault("unused", listed(dead), text, "a gradient"))
