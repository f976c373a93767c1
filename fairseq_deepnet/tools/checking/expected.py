"""A model's claim, and the comparison of its initial weights with this claim."""

from __future__ import annotations

import dataclasses
import math
from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer import TransformerModelBase
from fairseq.models.transformer_lm import TransformerLanguageModel
from torch import Tensor, nn

from fairseq_deepnet.anatomy import Branch, Stack, kind_of
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
from fairseq_deepnet.tools.checking.findings import Fact, Fault, WeightRow, inside
from fairseq_deepnet.tools.checking.layouts import WideBranch
from fairseq_deepnet.tools.checking.measure import rms

BERT_STD: Final = 0.02
STANDARD_ERRORS: Final = 5
FLOOR: Final = 0.002
"""Tolerance of a ratio of standard deviations: a number of standard errors, plus a constant."""
ONE_GAIN: Final = 0.01
"""Gains with a smaller relative difference are shown as one gain."""

Start = ResidualScheme | Literal["fairseq", "roberta"]
"""Initialisation of the linear maps."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """Expected properties of a model.

    Args:
        schemes: scheme of each side.
        starts: initialisation of each side's linear maps.
        text: source of the claim, shown after "judged as".
        final_norms: True for a side whose stack ends in a LayerNorm; None if the norms outside the
            layers are not judged.
    """

    schemes: dict[Side, ResidualScheme]
    starts: Mapping[Side, Start]
    text: str
    final_norms: dict[Side, bool] | None = None

    def scheme_text(self, side: Side) -> str:
        """Name a side's scheme, its variant, and an initialisation other than the scheme's."""
        scheme = self.schemes[side]
        variant = f", variant {scheme.variant}" if scheme.variant else ""
        stock = isinstance(self.starts[side], str)
        return f"{scheme.name}{variant}" + (", stock initialisation" if stock else "")


def make_claim(
    model: nn.Module, args: Namespace | None, stacks: Sequence[Stack], name: str | None
) -> Claim:
    """Return the claim of the model's arguments, or of the scheme called `name`.

    Raises:
        ValueError: if there is no name and the model's arguments imply no scheme.
    """
    layers = {stack.side: len(stack.layers) for stack in stacks}
    depths = Depths(layers.get(Side.ENCODER, 0), layers.get(Side.DECODER, 0))
    own = getattr(args, "residual_scheme", None)
    stock: Start | None = None  # meaning of `--init stock` for this model
    if isinstance(model, RobertaModel):
        stock = "roberta"
    elif args is not None and isinstance(model, TransformerModelBase | TransformerLanguageModel):
        stock = "fairseq"
    text = "its own arguments say"
    if own is not None and name in (None, own):
        recorded = scheme_of(args, tuple(layers))
        # without the alphas recorded in a checkpoint: the claim is the formula
        schemes = dict.fromkeys(layers, type(recorded)(recorded.depths, variant=recorded.variant))
        is_stock = getattr(args, "init", "scheme") == "stock"
    elif name is not None:
        schemes, text = dict.fromkeys(layers, scheme_class(name)(depths)), f"--claim {name} says"
        # only some schemes use fairseq's initialisation, and only fairseq's models have it
        is_stock = own is None and scheme_class(name).stock_initialisation
    elif stock is not None:
        schemes, is_stock = {side: stock_scheme(args, side)(depths) for side in layers}, True
    else:
        raise ValueError(
            f"{type(model).__name__} is neither ours nor fairseq's Transformer and claims nothing;"
            " add --claim SCHEME"
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
    )


def xavier_std(linear: nn.Linear) -> float:
    """Return sqrt(2 / (fan_in + fan_out))."""
    return math.sqrt(2 / (linear.in_features + linear.out_features))


def initial_std(
    start: Start, place: Place, branch: Branch, role: Role, linear: nn.Linear
) -> tuple[float, float]:
    """Return the standard deviations around 0 of a new linear map's weight and bias.

    A scheme multiplies Xavier's by its gain and sets biases to 0. fairseq draws q, k and v
    Xavier-uniform, smaller by sqrt(2) if their fans are equal; out_proj Xavier-uniform with bias 0;
    and all others as nn.Linear, uniform in +- 1 / sqrt(fan_in). fairseq's RoBERTa draws weights
    from N(0, 0.02) and sets biases to 0.
    """
    if isinstance(start, ResidualScheme):
        return start.gain(place, branch.sublayer, role) * xavier_std(linear), 0.0
    if start == "roberta":
        return BERT_STD, 0.0
    default = 1 / math.sqrt(3 * linear.in_features)
    if branch.sublayer is Sublayer.FFN:
        return default, default
    if role is Role.OUT_PROJ:
        return xavier_std(linear), 0.0
    same_dim = branch.linears[Role.K_PROJ].in_features == branch.linears[Role.Q_PROJ].in_features
    return xavier_std(linear) / (math.sqrt(2) if same_dim else 1), default


class Member(NamedTuple):
    """A parameter and its expected standard deviation; `xavier` is empty for a bias."""

    kind: str
    tensor: Tensor
    std: float
    xavier: tuple[float, ...] = ()


def weight_row(name: str, members: Sequence[Member]) -> tuple[WeightRow, list[int]]:
    """Compare standard deviations.

    Returns:
        a row, and the indices of the deviating members; all if only their pooled ratio deviates.
    """

    def tolerance(count: int) -> float:
        # relative, for the std of `count` normal draws; uniform draws vary less
        return STANDARD_ERRORS / math.sqrt(2 * count) + FLOOR

    expected = tuple(member.std for member in members)
    measured = tuple(rms(member.tensor) for member in members)
    off, squares, count = [], 0.0, 0
    for index, (member, std) in enumerate(zip(members, measured, strict=True)):
        size, wrong = member.tensor.numel(), std != 0
        if member.std != 0:
            squares += size * (std / member.std) ** 2
            count += size
            wrong = abs(std / member.std - 1) > tolerance(size)
        if wrong:
            off.append(index)
    ratio, limit = (math.sqrt(squares / count), tolerance(count)) if count else (None, 0.0)
    if ratio is not None and abs(ratio - 1) > limit:
        off = off or list(range(len(members)))
    gain, measured_gain = (
        tuple(std / x for std, member in zip(stds, members, strict=True) for x in member.xavier)
        for stds in (expected, measured)
    )
    return WeightRow(name, expected, measured, gain, measured_gain, ratio, limit, not off), off


def check_weights(
    stack: Stack, claim: Claim, judged: bool
) -> tuple[Fact, list[WeightRow], list[Fault]]:
    """Compare the initial weights and biases of a stack's linear maps with the claim.

    Returns:
        beta, a row per kind of linear map and per kind of bias, and the faults.
    """
    weights: dict[str, list[Member]] = defaultdict(list)
    biases: dict[bool, list[Member]] = defaultdict(list)
    for index, layer in enumerate(stack.layers):
        place = Place(stack.side, index)
        for branch in layer.branches:
            maps = {kind_of(branch.sublayer, r): (r, each) for r, each in branch.linears.items()}
            if isinstance(branch, WideBranch):
                maps = branch.maps
            for kind, (role, linear) in maps.items():
                std, bias_std = initial_std(claim.starts[stack.side], place, branch, role, linear)
                weights[kind].append(Member(kind, linear.weight, std, (xavier_std(linear),)))
                if linear.bias is not None:
                    biases[bias_std == 0].append(Member(kind, linear.bias, bias_std))
    side, rows, faults = stack.side.value, [], []
    groups: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for kind, members in weights.items():
        row, off = weight_row(kind, members)
        rows.append(row)
        if off:
            have, want = ([g[index] for index in off] for g in (row.measured_gain, row.gain))
            measured, expected = (
                f"{pooled(gains):.3g}"
                if len(set(want)) == 1
                else f"{gains[0]:.3g} (bottom) to {gains[-1]:.3g} (top)"
                for gains in (have, want)
            )
            groups[inside(off, len(members)), expected][kind] = measured
    for (where, expected), kinds in groups.items():
        gains = ", ".join(dict.fromkeys(kinds.values()))
        place_text = f"{side} {', '.join(kinds)}{where}"
        faults.append(Fault("weights", place_text, f"gain {gains}", f"gain {expected}"))
    beta = _beta(rows)
    for members in biases.values():
        label = "biases of linear maps"
        if len(biases) > 1:
            roles = dict.fromkeys(member.kind.rpartition(".")[2] for member in members)
            label = f"biases of {', '.join(roles)}"
        row, off = weight_row(f"{label} ({len(members)})", members)
        due, ends = (
            tuple(dict.fromkeys((min(stds), max(stds)))) for stds in (row.expected, row.measured)
        )
        rows.append(dataclasses.replace(row, expected=due, measured=ends))
        if off:
            where = ", ".join(dict.fromkeys(members[index].kind for index in off))
            largest = f"std up to {max(row.measured[index] for index in off):.3g}"
            expected = " to ".join(f"{std:.3g}" for std in due)
            faults.append(Fault("biases", f"{side} biases of {where}", largest, expected))
    if judged:
        return beta, rows, faults
    rows = [dataclasses.replace(r, expected=(), gain=(), ratio=None, fine=None) for r in rows]
    return dataclasses.replace(beta, expected="", fine=None), rows, []


def pooled(gains: Sequence[float]) -> float:
    """Return the pooled gain of weights of equal size."""
    return math.sqrt(sum(gain**2 for gain in gains) / len(gains))


def _beta(rows: Sequence[WeightRow]) -> Fact:
    """Return the value path's gains, pooled over layers; a range if kinds differ."""
    rows = [row for row in rows if row.name.split()[0].rpartition(".")[2] in VALUE_PATH]
    texts = []
    for values in ([row.measured_gain for row in rows], [row.gain for row in rows]):
        gains = [pooled(value) for value in values]
        low, high = min(gains), max(gains)
        if high - low <= ONE_GAIN * high:
            low = high = sum(gains) / len(gains)
        texts.append(" to ".join(dict.fromkeys(f"{value:.3g}" for value in (low, high))))
    name = "beta (gain of v_proj, out_proj, fc1, fc2)"
    return Fact(name, texts[0], texts[1], all(row.fine for row in rows))
