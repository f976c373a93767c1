"""The claim of a model, and the comparison of its initial weights with it."""

from __future__ import annotations

import dataclasses
import math
from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, Literal

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
        """Name the scheme of a side, its variant, and an initialisation other than its own."""
        scheme = self.schemes[side]
        variant = f", variant {scheme.variant}" if scheme.variant else ""
        stock = isinstance(self.starts[side], str)
        return f"{scheme.name}{variant}" + (", stock initialisation" if stock else "")


def make_claim(
    model: nn.Module, args: Namespace | None, stacks: Sequence[Stack], name: str | None
) -> Claim:
    """Return the claim called `name`; by default, the claim of the model's arguments.

    Raises:
        ValueError: if the model's arguments claim nothing.
    """
    layers = {stack.side: len(stack.layers) for stack in stacks}
    depths = Depths(layers.get(Side.ENCODER, 0), layers.get(Side.DECODER, 0))
    own = getattr(args, "residual_scheme", None)
    stock: Start | None = None  # meaning of `--init stock` for this model
    if isinstance(model, RobertaModel):
        stock = "roberta"
    elif args is not None and isinstance(model, TransformerModelBase | TransformerLanguageModel):
        stock = "fairseq"
    text = "its own arguments say" if name is None else f"--claim {name} says"
    if own is not None and name in (None, own):
        recorded = scheme_of(args, tuple(layers))
        # without the alphas that a checkpoint recorded: the claim is the formula
        schemes = dict.fromkeys(layers, type(recorded)(recorded.depths, variant=recorded.variant))
        is_stock, text = getattr(args, "init", "scheme") == "stock", "its own arguments say"
    elif name is not None:
        schemes = dict.fromkeys(layers, scheme_class(name)(depths))
        # fairseq's initialisation belongs to some schemes, and only fairseq's models have it
        is_stock = stock is not None and own is None and scheme_class(name).stock_initialisation
    elif stock is not None:
        schemes = {side: stock_scheme(args, side)(depths) for side in layers}
        is_stock = True
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
    """Return the standard deviations around 0 of the weight and bias of a new linear map.

    Initialised by a scheme: Xavier times its gain, biases 0. By fairseq: q, k and v Xavier-uniform
    and smaller by sqrt(2) if their fans are equal, out_proj Xavier-uniform with bias 0, all others
    as nn.Linear, uniform in +- 1 / sqrt(fan_in). By fairseq's RoBERTa: N(0, 0.02), biases 0.
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


def weight_row(
    name: str,
    expected: Sequence[float],
    weights: Sequence[Tensor],
    xavier: Sequence[float] = (),
) -> tuple[WeightRow, list[int]]:
    """Return a row, and the indices of the weights that deviate individually."""

    def tolerance(count: int) -> float:
        # of the std of `count` normal draws, relative; uniform ones vary less
        return STANDARD_ERRORS / math.sqrt(2 * count) + FLOOR

    measured = [rms(weight) for weight in weights]
    off, squares, count = [], 0.0, 0
    for index, (want, have, weight) in enumerate(zip(expected, measured, weights, strict=True)):
        size = weight.numel()
        if want == 0:
            wrong = have != 0
        else:
            squares += size * (have / want) ** 2
            count += size
            wrong = abs(have / want - 1) > tolerance(size)
        if wrong:
            off.append(index)
    ratio = math.sqrt(squares / count) if count else None
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


def check_weights(
    stack: Stack, claim: Claim, judged: bool
) -> tuple[Fact, list[WeightRow], list[Fault]]:
    """Compare the initial weights and biases of a stack's linear maps with the claim.

    Returns:
        beta, a row per kind of linear map and per kind of bias, and the faults.
    """
    weights: dict[str, list[tuple[nn.Linear, float]]] = defaultdict(list)
    biases: dict[bool, list[tuple[str, Tensor, float]]] = defaultdict(list)
    for index, layer in enumerate(stack.layers):
        for branch in layer.branches:
            maps = {
                kind_of(branch.sublayer, r): (r, linear) for r, linear in branch.linears.items()
            }
            if isinstance(branch, WideBranch):
                maps = branch.maps
            for kind, (role, linear) in maps.items():
                place = Place(stack.side, index)
                weight, bias = initial_std(claim.starts[stack.side], place, branch, role, linear)
                weights[kind].append((linear, weight))
                if linear.bias is not None:
                    biases[bias == 0].append((kind, linear.bias, bias))
    faults: list[Fault] = []
    rows = _linear_rows(stack.side, weights, faults)
    beta = Fact("beta (gain of v_proj, out_proj, fc1, fc2)", *_betas(rows))
    rows += _bias_rows(stack.side, list(biases.values()), faults)
    if judged:
        return beta, rows, faults
    rows = [dataclasses.replace(r, expected=(), gain=(), ratio=None, fine=None) for r in rows]
    return dataclasses.replace(beta, expected=""), rows, []


def _linear_rows(
    side: Side, weights: Mapping[str, list[tuple[nn.Linear, float]]], faults: list[Fault]
) -> list[WeightRow]:
    """Return a row per kind of linear map; add one fault for all kinds with equal deviations."""
    rows: list[WeightRow] = []
    groups: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for name, members in weights.items():
        linears, stds = zip(*members, strict=True)
        xavier = [xavier_std(linear) for linear in linears]
        row, off = weight_row(name, stds, [linear.weight for linear in linears], xavier)
        rows.append(row)
        if not row.fine:
            layers = off or range(len(members))
            have, want = ([g[index] for index in layers] for g in (row.measured_gain, row.gain))
            measured, expected = (
                f"{pooled(gains):.3g}"
                if len(set(want)) == 1
                else f"{gains[0]:.3g} (bottom) to {gains[-1]:.3g} (top)"
                for gains in (have, want)
            )
            groups[inside(off, len(members)), expected][name] = measured
    for (where, expected), kinds in groups.items():
        gains = ", ".join(dict.fromkeys(kinds.values()))
        place = f"{side.value} {', '.join(kinds)}{where}"
        faults.append(Fault("weights", place, f"gain {gains}", f"gain {expected}"))
    return rows


def pooled(gains: Sequence[float]) -> float:
    """Return the pooled gain of weights of equal size."""
    return math.sqrt(sum(gain**2 for gain in gains) / len(gains))


def _betas(rows: Sequence[WeightRow]) -> tuple[str, str]:
    """Return the value path's measured and expected gain, pooled over layers; a range of kinds."""
    rows = [row for row in rows if row.name.split()[0].rpartition(".")[2] in VALUE_PATH]
    texts = []
    for values in ([row.measured_gain for row in rows], [row.gain for row in rows]):
        gains = [pooled(value) for value in values]
        low, high = min(gains), max(gains)
        if high - low <= ONE_GAIN * high:
            low = high = sum(gains) / len(gains)
        texts.append(" to ".join(dict.fromkeys(f"{value:.3g}" for value in (low, high))))
    return texts[0], texts[1]


def _bias_rows(
    side: Side, groups: Sequence[Sequence[tuple[str, Tensor, float]]], faults: list[Fault]
) -> list[WeightRow]:
    """Return a row for each group of biases (zero or not); add their faults."""
    rows = []
    for members in groups:
        names, biases, expected = zip(*members, strict=True)
        roles = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in names))
        label = f"biases of {roles}" if len(groups) > 1 else "biases of linear maps"
        row, off = weight_row(f"{label} ({len(names)})", expected, biases)
        due, measured = (
            tuple(dict.fromkeys((min(numbers), max(numbers))))
            for numbers in (row.expected, row.measured)
        )
        rows.append(dataclasses.replace(row, expected=due, measured=measured))
        if not row.fine:
            wrong = off or range(len(members))
            where = ", ".join(dict.fromkeys(names[index] for index in wrong))
            largest = f"std up to {max(row.measured[index] for index in wrong):.3g}"
            want = " to ".join(f"{std:.3g}" for std in due)
            faults.append(Fault("biases", f"{side.value} biases of {where}", largest, want))
    return rows
