"""Comparison of a model's weights, LayerNorms and residual connections with its claimed scheme."""

import copy
import dataclasses
import math
from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple

import torch
from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer import TransformerModelBase
from fairseq.models.transformer_lm import TransformerLanguageModel
from torch import Tensor, nn
from torch.utils._pytree import tree_map

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
from fairseq_deepnet.tools.checking import measure
from fairseq_deepnet.tools.checking.findings import (
    Fact,
    Fault,
    Findings,
    StackFindings,
    WeightRow,
    inside,
)
from fairseq_deepnet.tools.checking.layouts import Layout, WideBranch, find_layers
from fairseq_deepnet.tools.checking.measure import Fit, LayerFit, rms, same

BERT_STD: Final = 0.02
STANDARD_ERRORS: Final = 5
FLOOR: Final = 0.002
"""Tolerance for a ratio of standard deviations: STANDARD_ERRORS standard errors plus FLOOR."""
ONE_GAIN: Final = 0.01
"""Gains whose relative difference is smaller are shown as one gain."""
LEARNED: Final = "learned"
YES_NO: Final = {True: "yes", False: "no"}
NORM_TEXTS: Final = {
    NormPlacement.POST: "after the sum",
    NormPlacement.PRE: "before the branch",
    NormPlacement.NONE: "none",
    None: "in another place",
}

Start = ResidualScheme | Literal["fairseq", "roberta"]
"""Initialisation of the linear maps, by a scheme or as in a model of fairseq."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """Expected properties of a model.

    Args:
        schemes: scheme of each side.
        starts: initialisation of each side's linear maps.
        text: source of the claim, shown after "judged by".
        final_norms: True for a side whose stack ends in a LayerNorm; None if LayerNorms outside the
            layers are not judged.
    """

    schemes: dict[Side, ResidualScheme]
    starts: Mapping[Side, Start]
    text: str
    final_norms: dict[Side, bool] | None = None


def make_claim(
    model: nn.Module, args: Namespace | None, stacks: Sequence[Stack], name: str | None
) -> Claim:
    """Return the claim that the model's arguments imply, or a claim to implement scheme `name`.

    Raises:
        ValueError: if `name` is None and the model's arguments imply no scheme.
    """
    layers = {stack.side: len(stack.layers) for stack in stacks}
    depths = Depths(layers.get(Side.ENCODER, 0), layers.get(Side.DECODER, 0))
    own = getattr(args, "residual_scheme", None)
    stock: Start | None = None  # meaning of `--init stock` for this model
    if isinstance(model, RobertaModel):
        stock = "roberta"
    elif args is not None and isinstance(model, TransformerModelBase | TransformerLanguageModel):
        stock = "fairseq"
    text = "its own arguments"
    if own is not None and name in (None, own):
        recorded = scheme_of(args, tuple(layers))
        # the claim is the scheme's formula, not the alphas recorded in a checkpoint
        schemes = dict.fromkeys(layers, type(recorded)(recorded.depths, variant=recorded.variant))
        is_stock = getattr(args, "init", "scheme") == "stock"
    elif name is not None:
        schemes, text = dict.fromkeys(layers, scheme_class(name)(depths)), f"--claim {name}"
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
    """Return the standard deviation of Xavier's initialisation, sqrt(2 / (fan_in + fan_out))."""
    return math.sqrt(2 / (linear.in_features + linear.out_features))


def initial_std(
    start: Start, place: Place, branch: Branch, role: Role, linear: nn.Linear
) -> tuple[float, float]:
    """Return the standard deviations around 0 of a new linear map's weight and bias.

    A scheme multiplies Xavier's standard deviation by its gain and sets biases to 0. fairseq draws
    q, k and v from Xavier's uniform distribution, divided by sqrt(2) if q and k have equal inputs.
    It draws out_proj from Xavier's uniform distribution, with bias 0, and all other parameters like
    nn.Linear, uniformly from -1 / sqrt(fan_in) to 1 / sqrt(fan_in). fairseq's RoBERTa draws weights
    from a normal distribution with standard deviation 0.02, and sets biases to 0.
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
    """Parameter with its expected standard deviation and, if it is a weight, Xavier's value."""

    kind: str
    tensor: Tensor
    std: float
    xavier: tuple[float, ...] = ()


def weight_row(name: str, members: Sequence[Member]) -> tuple[WeightRow, list[int]]:
    """Compare the measured standard deviations of parameters with the expected ones.

    Returns:
        a row, and the indices of deviating members, or all indices if only the pooled ratio
        deviates.
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
        beta, a row for each kind of linear map and bias, and the faults.
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
            pairs = [(row.measured_gain[index], row.gain[index]) for index in off]
            measured, expected = (
                f"{pooled(gains):.3g}"
                if len({gain for _, gain in pairs}) == 1
                else f"{gains[0]:.3g} (bottom) to {gains[-1]:.3g} (top)"
                for gains in zip(*pairs, strict=True)
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
        stds, measured_stds = (
            tuple(dict.fromkeys((min(ends), max(ends)))) for ends in (row.expected, row.measured)
        )
        rows.append(dataclasses.replace(row, expected=stds, measured=measured_stds))
        if off:
            where = ", ".join(dict.fromkeys(members[index].kind for index in off))
            largest = f"std up to {max(row.measured[index] for index in off):.3g}"
            expected = " to ".join(f"{std:.3g}" for std in stds)
            faults.append(Fault("biases", f"{side} biases of {where}", largest, expected))
    if judged:
        return beta, rows, faults
    rows = [dataclasses.replace(r, expected=(), gain=(), ratio=None, fine=None) for r in rows]
    return dataclasses.replace(beta, expected="", fine=None), rows, []


def pooled(gains: Sequence[float]) -> float:
    """Return the pooled gain of weights of equal size."""
    return math.sqrt(sum(gain**2 for gain in gains) / len(gains))


def _beta(rows: Sequence[WeightRow]) -> Fact:
    """Return the pooled gains of v_proj, out_proj, fc1 and fc2, as a range if they differ."""
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


def check(
    model: nn.Module,
    batch: Any,
    claims: str = "deepnorm",
    layers: Layout | None = None,
    trained: bool = False,
) -> Findings:
    """Measure any model and compare it with a scheme, without changing the model.

    Args:
        model: a Transformer whose linear maps are separate modules, or equal row blocks of one map.
        batch: arguments of the forward method (a mapping, a tuple or one tensor), without padding.
        claims: name of the residual scheme that the model is supposed to implement.
        layers: names of the linear maps; by default, those of `LAYOUTS` are tried.
        trained: True if the weights have been trained; they are then not judged.

    Returns:
        the findings, with `is_fine` and `faults`. Printing the findings shows the report.

    Raises:
        ValueError: if the scheme is unknown or the layers are not recognised.
    """
    model = copy.deepcopy(model).double().eval()
    batch = tree_map(
        lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, batch
    )
    stacks = find_layers(model, layers)
    depths = Depths(*(sum(len(s.layers) for s in stacks if s.side is side) for side in Side))
    schemes = {stack.side: scheme_class(claims)(depths) for stack in stacks}
    claim = Claim(schemes, schemes, f"claims={claims!r}")
    return compare(model, stacks, claim, batch, type(model).__name__, trained)


def compare(
    model: nn.Module,
    stacks: Sequence[Stack],
    claim: Claim,
    batch: Any,
    subject: str,
    trained: bool = False,
) -> Findings:
    """Compare a model with a claim. The model is modified and should not be used afterwards.

    Args:
        batch: arguments of the forward method; if None, random tokens, as fairseq's models expect.
        trained: True if the weights have been trained; they are then not judged.

    Raises:
        ValueError: if a parameter is not finite or the forward pass does not reach a layer.
    """
    for name, parameter in model.named_parameters():
        if broken := int((~torch.isfinite(parameter)).sum()):
            raise ValueError(f"{name}: {broken} of {parameter.numel()} numbers are not finite")
    weights = [check_weights(stack, claim, judged=not trained) for stack in stacks]
    model.double().eval()
    batch = measure.random_batch(model, stacks) if batch is None else batch
    passes = measure.run_model(model, stacks, batch)
    fits = measure.fit_residuals(model, stacks, batch)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    findings = Findings(subject, claim.text, parameters, not trained, [], [])
    for stack, (beta, rows, faults), (streams, normed), layers in zip(
        stacks, weights, passes, fits, strict=True
    ):
        scheme = claim.schemes[stack.side]
        facts, residual_faults = check_residuals(stack, layers, scheme, findings.judged)
        norms, norm_faults = check_norms(stack, layers, claim, normed, not trained)
        facts[1:1] = [beta, *norms]
        text = f"{scheme.name}, variant {scheme.variant}" if scheme.variant else scheme.name
        text += ", stock initialisation" if isinstance(claim.starts[stack.side], str) else ""
        findings.sides.append(StackFindings(stack.side, text, len(stack.layers), facts, rows))
        findings.faults += faults + residual_faults
        findings.faults += check_inputs(stack, scheme, streams) + norm_faults
    return findings


def check_norms(
    stack: Stack, layers: Sequence[LayerFit], claim: Claim, normed: bool, judged: bool
) -> tuple[list[Fact], list[Fault]]:
    """Compare LayerNorms' positions, and their gains if `judged`, with the claim.

    `normed` is True if a LayerNorm follows the stack.

    If a position within the layers is wrong, `check_residuals` reports it as part of the formula.
    """
    scheme, side = claim.schemes[stack.side], stack.side.value
    positions = dict.fromkeys(NORM_TEXTS[f.norm] for layer in layers for f in layer.sublayers)
    measured, expected = ", ".join(positions), NORM_TEXTS[scheme.norm]
    facts, faults = [Fact("LayerNorm", measured, expected, measured == expected)], []
    fits = [fit for layer in layers for fit in layer.sublayers if fit.norm is scheme.norm]
    sizes = [rms(fit.normed) for fit in fits if judged and fit.normed is not None]
    if any(abs(size - 1) > ONE_GAIN for size in sizes):
        size = factor([(size, size) for size in sizes]).strip() or "1"
        faults.append(Fault("norms", f"{side} LayerNorms", f"outputs of RMS {size}", "1"))
    name, norm = "LayerNorm after the stack", scheme.norm is NormPlacement.PRE
    if claim.final_norms is None:
        text = YES_NO[norm] + ("" if normed is norm else " (not judged)")
        return [*facts, Fact(name, YES_NO[normed], text, normed is norm or None)], faults
    norm = claim.final_norms[stack.side]
    facts.append(Fact(name, YES_NO[normed], YES_NO[norm], normed is norm))
    if normed is not norm:
        texts = {True: f"a {name}", False: f"no {name}"}
        faults.append(Fault("norms", f"{side} output", texts[normed], texts[norm]))
    if scheme.embedding_norm and getattr(stack.module, "layernorm_embedding", None) is None:
        name = "LayerNorm after the embeddings"
        faults.append(Fault("norms", f"{side} embeddings", f"no {name}", f"a {name}"))
    return facts, faults


def check_residuals(
    stack: Stack, layers: Sequence[LayerFit], scheme: ResidualScheme, judged: bool
) -> tuple[list[Fact], list[Fault]]:
    """Compare sublayers with the scheme's residuals, applied to the same streams and branches.

    Returns:
        the facts (alpha and each sublayer's formula) and the faults.
    """
    sublayers = tuple(branch.sublayer for branch in stack.layers[0].branches)
    width = stack.layers[0].branches[-1].linears[Role.FC2].out_features
    expected_layers, learned = [], False
    for index, layer in enumerate(layers):
        residuals = scheme.build_residuals(Place(stack.side, index), sublayers, width)
        learned |= any(list(residual.state_dict()) for residual in residuals.values())
        own = [residuals[sublayer] for sublayer in sublayers]
        expected_layers.append(measure.expected_layer(own, scheme, layer))
    judged |= not learned
    fits, targets = ([layer.sublayers for layer in each] for each in (layers, expected_layers))
    facts, groups = [], defaultdict(list)
    for position, sublayer in enumerate(sublayers):
        column, target = ([layer[position] for layer in each] for each in (fits, targets))
        off = [
            index
            for index, (a, b) in enumerate(zip(column, target, strict=True))
            if a.norm is not b.norm or (judged and not (same(a.z, b.z) and same(a.entry, b.entry)))
        ]
        expected = formula(target) if judged else LEARNED
        facts.append(Fact(sublayer.value, formula(column), expected, not off))
        if off:
            texts = (formula([each[index] for index in off]) for each in (column, target))
            groups[inside(off, len(fits)), *texts].append(sublayer.value)
    faults = [
        Fault("residual", f"{stack.side.value} {', '.join(names)}{where}", measured, expected)
        for (where, measured, expected), names in groups.items()
    ]
    measured, expected = (
        factor([fit.residual for layer in each for fit in layer]).strip() or "1"
        for each in (fits, targets)
    )
    fine = not faults or measured == expected
    alpha = Fact("alpha", measured, *((expected, fine) if judged else (LEARNED, None)))
    pairs = zip(layers, expected_layers, strict=True)
    if judged and not all(same(a.output[:, width:], b.output[:, width:]) for a, b in pairs):
        where, excess = f"{stack.side.value} layers", "unexpected streams besides x"
        faults.append(Fault("inputs", where, excess, f"those of {scheme.name}"))
    return [alpha, *facts], faults


def formula(fits: Sequence[Fit]) -> str:
    """Return a formula such as `LN(1.999 x + G(x))`, with ranges if the sublayers differ."""
    norms = list(dict.fromkeys(fit.norm for fit in fits))
    if len(norms) > 1:
        return " or ".join(formula([f for f in fits if f.norm is norm]) for norm in norms)
    inner = "x"
    if norms[0] is NormPlacement.PRE:
        inner = f"{factor([(fit.inner, fit.inner) for fit in fits])}LN(x)"
    exact = all(fit.error <= measure.SAME for fit in fits)
    branch = f"{factor([fit.branch for fit in fits])}G({inner})" if exact else f"T(G({inner}))"
    total = f"{factor([fit.residual for fit in fits])}x + {branch}"
    if any(fit.bottom for fit in fits):
        total = f"{factor([(fit.bottom, fit.bottom) for fit in fits])}input + {total}"
    if norms[0] is None:
        return f"{total}, its LayerNorm neither before the branch nor after the sum"
    return f"LN({total})" if norms[0] is NormPlacement.POST else total


def factor(ends: Sequence[tuple[float, float]]) -> str:
    """Return a factor such as `1.999 ` or `1.2..3.4 `, or an empty string for 1."""
    least, greatest = min(low for low, _ in ends), max(high for _, high in ends)
    texts = [f"{value:.4g}" for value in (least, greatest)]
    texts = list(dict.fromkeys("0" if abs(float(text)) < measure.SAME else text for text in texts))
    return "" if texts == ["1"] else f"{'..'.join(texts)} "


def check_inputs(
    stack: Stack, scheme: ResidualScheme, streams: Sequence[Sequence[Tensor]]
) -> list[Fault]:
    """Check that layers read the output of the layer below, or the scheme's combination."""
    if len(streams) < 2:
        return []
    plain = all(same(below[1], above[0]) for below, above in pairwise(streams))
    expected = scheme.build_combination(stack.side, streams[0][0].size(-1)) is None
    texts = {
        True: "inputs are the output of the layer below",
        False: "inputs are a combination of all outputs below",
    }
    fault = Fault("inputs", f"{stack.side.value} layers", texts[plain], texts[expected])
    return [] if plain is expected else [fault]
