"""The claim that a model makes, and its initial weights beside it: standard deviations around 0."""

from __future__ import annotations

import dataclasses
import math
from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import torch
from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer import TransformerModelBase
from fairseq.models.transformer_lm import TransformerLanguageModel
from torch import Tensor, nn

from fairseq_deepnet.anatomy import PROJECTIONS, Branch, Stack, kind_of, projections
from fairseq_deepnet.models.scheme_options import scheme_of, stock_scheme
from fairseq_deepnet.schemes import (
    Depths,
    NormPlacement,
    Place,
    ResidualScheme,
    Role,
    Side,
    Sublayer,
    scheme_class,
)
from fairseq_deepnet.schemes.base import VALUE_PATH
from fairseq_deepnet.tools.checking.findings import Fault, WeightRow, inside
from fairseq_deepnet.tools.checking.measure import rms

BERT_STD: Final = 0.02
STANDARD_ERRORS: Final = 5
FLOOR: Final = 0.002
"""A ratio of standard deviations may be off by so many standard errors, plus so much."""
ONE_GAIN: Final = 0.01
"""Gains that differ by less are shown as one."""

Start = ResidualScheme | Literal["fairseq", "roberta"]
"""Initialisation of the linear maps."""


@dataclasses.dataclass(frozen=True)
class WideBranch(Branch):
    """A branch with all maps of each role, by the paths that they have."""

    maps: Mapping[str, tuple[Role, nn.Linear]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Claim:
    """What a model is to be.

    Args:
        schemes: of each side.
        starts: initialisation of each side's linear maps.
        text: what makes the claim, to follow "judged as".
        final_norms: True for a side whose stack a LayerNorm follows; not judged where missing.
        whole: True for a model of ours or of fairseq's, of which all parameters are judged.
        scaled_ends: True if the scheme may change embeddings and vocabulary projection.
        bert_ends: embeddings N(0, 0.02) instead of N(0, 1 / C).
    """

    schemes: dict[Side, ResidualScheme]
    starts: Mapping[Side, Start]
    text: str
    final_norms: dict[Side, bool] = dataclasses.field(default_factory=dict)
    whole: bool = False
    scaled_ends: bool = True
    bert_ends: bool = False

    def scheme_text(self, side: Side) -> str:
        """Name the scheme of a side, and what of it is not its default."""
        scheme = self.schemes[side]
        variant = f", variant {scheme.variant}" if scheme.variant else ""
        return f"{scheme.name}{variant}" + ("" if self.scaled_ends else ", stock initialisation")


def make_claim(
    model: nn.Module, args: Namespace | None, stacks: Sequence[Stack], name: str | None
) -> Claim:
    """Return the claim called `name`, or, where None, the one that the model's arguments make.

    Raises:
        ValueError: for a model of which the arguments claim nothing that is known.
    """
    layers = {stack.side: len(stack.layers) for stack in stacks}
    depths = Depths(layers.get(Side.ENCODER, 0), layers.get(Side.DECODER, 0))
    own = getattr(args, "residual_scheme", None)
    stock: Start | None = None  # what `--init stock` means for this model
    if isinstance(model, RobertaModel):
        stock = "roberta"
    elif args is not None and isinstance(model, TransformerModelBase | TransformerLanguageModel):
        stock = "fairseq"
    text = "its own arguments say" if name is None else f"--claim {name} says"
    if own is not None and name in (None, own):
        recorded = scheme_of(args, tuple(layers))
        # without the alphas that a checkpoint recorded: the formula is what is claimed
        schemes = dict.fromkeys(layers, type(recorded)(recorded.depths, variant=recorded.variant))
        is_stock, text = getattr(args, "init", "scheme") == "stock", "its own arguments say"
    elif name is not None:
        schemes = dict.fromkeys(layers, scheme_class(name)(depths))
        # fairseq's own start is part of some schemes' claim, and only fairseq's models have it
        is_stock = stock is not None and own is None and scheme_class(name).stock_initialisation
    elif stock is not None:
        schemes = {side: stock_scheme(args, side)(depths) for side in layers}
        is_stock = True
    else:
        raise ValueError(
            f"{type(model).__name__} is neither ours nor fairseq's Transformer, so that nothing is"
            " claimed by itself: say what it is meant to be, with --claim SCHEME"
        )
    without = {Side.DECODER} if getattr(args, "no_decoder_final_norm", False) else set()
    return Claim(
        schemes=schemes,
        starts={side: stock if is_stock and stock else schemes[side] for side in schemes},
        text=text,
        final_norms={
            side: scheme.norm is NormPlacement.PRE and side not in without
            for side, scheme in schemes.items()
        },
        whole=True,
        scaled_ends=not is_stock,
        bert_ends=isinstance(model, RobertaModel),
    )


def xavier_std(linear: nn.Linear) -> float:
    """Return sqrt(2 / (fan_in + fan_out))."""
    return math.sqrt(2 / (linear.in_features + linear.out_features))


def linear_default_std(linear: nn.Linear) -> float:
    """Return the standard deviation of nn.Linear's default: uniform, +- 1/sqrt(fan_in)."""
    return 1 / math.sqrt(3 * linear.in_features)


def initial_std(
    start: Start, place: Place, branch: Branch, role: Role, linear: nn.Linear
) -> tuple[float, float]:
    """Return the standard deviations, around 0, of weight and bias of a new linear map.

    A scheme: Xavier times its gain, biases 0. fairseq: q, k and v Xavier-uniform and smaller by
    sqrt(2) where their fans are one, out_proj Xavier-uniform with bias 0, all else nn.Linear's
    default. fairseq's RoBERTa: N(0, 0.02), biases 0.
    """
    if isinstance(start, ResidualScheme):
        return start.gain(place, branch.sublayer, role) * xavier_std(linear), 0.0
    if start == "roberta":
        return BERT_STD, 0.0
    default = linear_default_std(linear)
    if branch.sublayer is Sublayer.FFN:
        return default, default
    if role is Role.OUT_PROJ:
        return xavier_std(linear), 0.0
    same_dim = branch.linears[Role.K_PROJ].in_features == branch.linears[Role.Q_PROJ].in_features
    return xavier_std(linear) / (math.sqrt(2) if same_dim else 1), default


class DrawnMap(NamedTuple):
    """A linear map, its kind in reports, and the deviations that weight and bias start with."""

    kind: str
    linear: nn.Linear
    weight_std: float
    bias_std: float


def drawn_maps(stack: Stack, claim: Claim) -> list[DrawnMap]:
    """Return the linear maps of a stack and how the claim has them start."""
    start, drawn = claim.starts[stack.side], []
    for index, layer in enumerate(stack.layers):
        place = Place(stack.side, index)
        for branch in layer.branches:
            maps = {role.value: (role, linear) for role, linear in branch.linears.items()}
            if isinstance(branch, WideBranch):
                maps = dict(branch.maps)
            roles = [role for role, _ in maps.values()]
            for path, (role, linear) in maps.items():
                kind = kind_of(branch.sublayer, role)
                if roles.count(role) > 1:
                    kind += f" {path.rpartition('.')[2]}"
                std = initial_std(start, place, branch, role, linear)
                drawn.append(DrawnMap(kind, linear, *std))
    return drawn


def weight_row(
    name: str,
    expected: Sequence[float],
    weights: Sequence[Tensor],
    xavier: Sequence[float] = (),
) -> tuple[WeightRow, list[int]]:
    """Return a row, and the layers that are off by themselves."""

    def tolerance(count: int) -> float:
        # of the std of `count` normal draws, relative; uniform ones vary less
        return STANDARD_ERRORS / math.sqrt(2 * count) + FLOOR

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
        row, off = weight_row(name, [drawn.weight_std for drawn in members], weights, xavier)
        rows.append(row)
        if not row.fine:
            which = off or range(len(members))
            have, want = ([g[index] for index in which] for g in (row.measured_gain, row.gain))
            texts = (
                f"{pooled(gains):.3g}"
                if len(set(want)) == 1
                else f"{gains[0]:.3g} (bottom) to {gains[-1]:.3g} (top)"
                for gains in (have, want)
            )
            groups[inside(off, len(members)), next(texts)][name] = next(texts)
    for (where, expected), measured in groups.items():
        place = f"{side.value} {', '.join(measured)}{where}"
        gains = ", ".join(dict.fromkeys(measured.values()))
        faults.append(Fault("weights", place, f"gain {gains}", f"gain {expected}"))
    return rows


def pooled(gains: Sequence[float]) -> float:
    """Return the gain of equally large weights taken together."""
    return math.sqrt(sum(gain**2 for gain in gains) / len(gains))


def betas(rows: Sequence[WeightRow]) -> tuple[str, str]:
    """Return the value path's gain, measured and expected: layers pooled, a range of kinds."""
    rows = [
        row for row in rows if row.gain and row.name.split()[0].rpartition(".")[2] in VALUE_PATH
    ]
    texts = []
    for values in ([row.measured_gain for row in rows], [row.gain for row in rows]):
        gains = [pooled(value) for value in values]
        low, high = min(gains), max(gains)
        if high - low <= ONE_GAIN * high:
            low = high = sum(gains) / len(gains)
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
        row, off = weight_row(f"{label} ({len(names)})", expected, biases)
        rows.append(_ends_only(row))
        if not row.fine:
            bad = off or range(len(members))
            where = ", ".join(dict.fromkeys(names[index] for index in bad))
            largest = f"std up to {max(row.measured[index] for index in bad):.3g}"
            want = " to ".join(f"{std:.3g}" for std in rows[-1].expected)
            faults.append(Fault("biases", f"{side.value} biases of {where}", largest, want))
    return rows


def _ends_only(row: WeightRow) -> WeightRow:
    """Return the row with the least and the greatest of its numbers."""
    expected, measured = (
        tuple(dict.fromkeys((min(numbers), max(numbers))))
        for numbers in (row.expected, row.measured)
    )
    return dataclasses.replace(row, expected=expected, measured=measured)


def end_factors(claim: Claim, stacks: Sequence[Stack]) -> dict[int, float]:
    """Return what the schemes multiply embeddings and projections by: id of weight -> factor.

    They are applied to ones, tied as the model's are.
    """
    weights: dict[int, nn.Parameter] = {}
    ends: dict[Side, nn.Module] = {}
    for stack in stacks:
        end = ends[stack.side] = nn.Module()
        for name in ("embed_tokens", *PROJECTIONS):
            table: Any = getattr(stack.module, name, None)
            weight = getattr(table, "weight", None)
            if isinstance(weight, nn.Parameter):
                small = nn.Embedding(2, 2) if isinstance(table, nn.Embedding) else nn.Linear(2, 2)
                small.weight = weights.setdefault(id(weight), nn.Parameter(torch.ones(2, 2)))
                setattr(end, name, small)
    if claim.scaled_ends:
        for scheme in {id(scheme): scheme for scheme in claim.schemes.values()}.values():
            scheme.initialise_ends(ends)
    return {key: rms(weight) for key, weight in weights.items()}


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
        std = BERT_STD if claim.bert_ends else weight.size(1) ** -0.5
        std *= factors.get(id(weight), 1.0)
        body = weight.detach()
        if padding is not None:
            body = torch.cat([body[:padding], body[padding + 1 :]])
        row, _ = weight_row(name, [std], [body])
        rows.append(row)
        if not row.fine:
            faults.append(Fault("embeddings", name, f"std {rms(body):.4g}", f"{std:.4g}"))
    return rows
