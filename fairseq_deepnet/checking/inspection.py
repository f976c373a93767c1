"""The whole check of one model: what is claimed, what is measured, and where they differ."""

from __future__ import annotations

import dataclasses
import math
from argparse import Namespace
from collections import defaultdict
from collections.abc import Sequence

from torch import nn

from fairseq_deepnet.checking import usage, weights, wiring
from fairseq_deepnet.checking.anatomy import Stack, find_stacks, kind_of
from fairseq_deepnet.checking.behaviour import (
    Join,
    expected_join,
    factor,
    formula,
    measure,
    same,
)
from fairseq_deepnet.checking.causes import explain_join, mistakes_of
from fairseq_deepnet.checking.claim import Claim, make_claim
from fairseq_deepnet.checking.findings import Fault, Findings, JoinRow, Row, SideFindings
from fairseq_deepnet.checking.recording import random_batch
from fairseq_deepnet.checking.words import plural
from fairseq_deepnet.schemes import NormPlacement, Place, ResidualScheme, Role
from fairseq_deepnet.schemes.base import VALUE_PATH

NORM_TEXTS = {
    NormPlacement.POST: "after the sum",
    NormPlacement.PRE: "before the branch",
    NormPlacement.NONE: "none",
    None: "in no known place",
}
HALF_PRECISION_LIMIT = 65504.0
ONE_NUMBER = 0.01  # gains that differ by less are shown as one


def inspect_model(
    model: nn.Module,
    subject: str,
    args: Namespace | None = None,
    claim_name: str | None = None,
    trained: bool = False,
    faults: Sequence[Fault] = (),
    notes: Sequence[str] = (),
) -> Findings:
    """Check a model, which is not usable afterwards.

    Arguments:
        model: in float32
        subject: what it is, in words
        args: the arguments that it was built from, where it is ours or fairseq's
        claim_name: the scheme that it is said to follow; None for what `args` say
        trained: whether its weights have moved, so that they cannot be judged
        faults, notes: what was found while it was loaded

    Raises ValueError for a model in which the parts of a Transformer are not found.
    """
    stacks = find_stacks(model)
    claim = make_claim(model, args, stacks, claim_name)
    found = Findings(
        subject,
        sum(parameter.numel() for parameter in model.parameters()),
        not trained,
        [],
        [],
        list(notes),
        [*faults, *wiring.check_finite(model)],
    )
    found.sides = [
        SideFindings(stack.side, _scheme_text(claim, stack), len(stack.layers)) for stack in stacks
    ]
    measure_weights(model, stacks, claim, found)
    found.faults += wiring.check_sharing(model, stacks, claim)
    found.faults += wiring.check_copies(model)
    found.faults += wiring.check_reach(model)
    model.double().eval()
    for stack in stacks:
        found.faults += usage.check_extras(stack, claim)
    measure_behaviour(model, stacks, claim, args, found)
    if not trained and any(
        type(scheme).prepare is not ResidualScheme.prepare for scheme in claim.schemes.values()
    ):
        found.notes.append(
            "the scheme sets a part of its residuals in the first training batch: not set yet"
        )
    return found


def _scheme_text(claim: Claim, stack: Stack) -> str:
    scheme = claim.schemes[stack.side]
    variant = f", variant {scheme.variant}" if scheme.variant else ""
    stock = "" if claim.scaled_ends else ", stock initialisation"
    return f"{scheme.name}{variant}{stock}"


def measure_weights(
    model: nn.Module, stacks: Sequence[Stack], claim: Claim, found: Findings
) -> None:
    """Rows of all weights, and faults where they can be judged."""
    faults: list[Fault] = []
    for stack, side in zip(stacks, found.sides, strict=True):
        for check in (weights.check_linears, weights.check_biases):
            rows, off = check(stack, claim)
            side.rows += rows
            faults += off
        rows, off = weights.check_norms(stack.side.value, stack.module)
        side.rows += rows
        faults += off
        side.beta, side.expected_beta = _betas(stack, side.rows)
    rows, off = weights.check_ends(model, stacks, claim)
    found.rows += rows
    faults += off
    if found.judged:
        found.faults += faults
        return
    # trained weights have no expectation; whether there are biases at all still has one
    found.faults += [fault for fault in faults if fault.kind == "structure"]
    for side in found.sides:
        side.rows = [_unjudged(row) for row in side.rows]
        side.expected_beta = ""
    found.rows = [_unjudged(row) for row in found.rows]


def _unjudged(row: Row) -> Row:
    return dataclasses.replace(row, expected=(), gain=(), ratio=None, fine=None)


def _betas(stack: Stack, rows: Sequence[Row]) -> tuple[str, str]:
    """Measured and expected gain of the value path, layers pooled, a range where kinds differ."""
    names = {
        kind_of(branch.sublayer, role)
        for _, branch, role, _ in stack.linears()
        if role in VALUE_PATH
    }
    texts = []
    for values in ("measured_gain", "gain"):
        pooled = [
            math.sqrt(sum(gain**2 for gain in getattr(row, values)) / len(row.gain))
            for row in rows
            if row.name in names
        ]
        low, high = min(pooled), max(pooled)
        if high - low <= ONE_NUMBER * high:
            low = high = sum(pooled) / len(pooled)
        texts.append(" to ".join(dict.fromkeys(f"{value:.3g}" for value in (low, high))))
    return texts[0], texts[1]


def measure_behaviour(
    model: nn.Module,
    stacks: Sequence[Stack],
    claim: Claim,
    args: Namespace | None,
    found: Findings,
) -> None:
    """How sublayers join the stream, how it grows, and which parameters matter."""
    batch = random_batch(model, stacks)
    gradients = usage.Gradients(model, stacks, batch)
    joins, final_norms = measure(model, stacks, batch)
    for stack, side, layers, normed in zip(stacks, found.sides, joins, final_norms, strict=True):
        compare_joins(stack, side, layers, claim, found)
        check_final_norm(stack, side, normed, claim, args, found)
        found.faults += usage.check_chain(stack, claim, gradients)
        streams = gradients.streams[stack.name]
        ends = [float(x.square().mean().sqrt()) for x in (streams[0][0], streams[-1][1])]
        side.growth = (ends[0], ends[1])
        if not ends[1] < HALF_PRECISION_LIMIT:
            found.notes.append(
                f"the {stack.side.value}'s stream grows to an RMS of {ends[1]:.2g} in an untouched"
                f" forward pass; fp16 ends at {HALF_PRECISION_LIMIT:.0f}"
            )
    if not gradients.finite:
        found.faults.append(Fault("finite", "output", "not finite on a random batch", "numbers"))
    notes, faults = usage.check_use(model, stacks, batch, gradients)
    found.notes += notes
    found.faults += faults


def compare_joins(
    stack: Stack,
    side: SideFindings,
    layers: Sequence[Sequence[Join]],
    claim: Claim,
    found: Findings,
) -> None:
    """Rows and faults of one side's sublayers."""
    scheme = claim.schemes[stack.side]
    sublayers = tuple(branch.sublayer for branch in stack.layers[0].branches)
    width = stack.layers[0].branches[-1].linears[Role.FC2].out_features
    due: list[list[Join]] = []
    judged = True
    for index, layer in enumerate(layers):
        residuals = scheme.build_residuals(Place(stack.side, index), sublayers, width)
        due.append(
            [
                expected_join(residuals[sublayer], scheme.norm, join)
                for sublayer, join in zip(sublayers, layer, strict=True)
            ]
        )
        learned = any(True for residual in residuals.values() for _ in residual.parameters())
        judged = judged and (found.judged or not learned)
    merged: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for position, sublayer in enumerate(sublayers):
        have = [layer[position] for layer in layers]
        want = [layer[position] for layer in due]
        off = [i for i, (a, b) in enumerate(zip(have, want, strict=True)) if _differs(a, b, judged)]
        expected = formula(want) if judged else "learned"
        side.joins.append(JoinRow(sublayer.value, formula(have), expected, not off))
        if off:
            inside = f" in {plural('layer', off)}" if len(off) < len(have) else ""
            cause = explain_join(have[off[0]], want[off[0]], scheme, stack.side)
            wrong, right = (formula([joins[i] for i in off]) for joins in (have, want))
            merged[inside, wrong, right, cause].append(sublayer.value)
    for (inside, wrong, right, cause), names in merged.items():
        where = f"{stack.side.value} {', '.join(names)}{inside}"
        says = mistakes_of(scheme).depth_source
        found.faults.append(Fault("residual", where, wrong, right, cause, says))
    side.alpha = factor([join.residual for layer in layers for join in layer]).strip() or "1"
    side.expected_alpha = factor([join.residual for layer in due for join in layer]).strip() or "1"
    if not judged:
        side.expected_alpha = "learned"
    norms = dict.fromkeys(NORM_TEXTS[join.norm] for layer in layers for join in layer)
    side.norm, side.expected_norm = ", ".join(norms), NORM_TEXTS[scheme.norm]


def _differs(have: Join, want: Join, judged: bool) -> bool:
    """Whether a sublayer does not what its scheme says, for the same stream and branch."""
    return have.norm is not want.norm or (judged and not same(have.z, want.z))


def check_final_norm(
    stack: Stack,
    side: SideFindings,
    normed: bool,
    claim: Claim,
    args: Namespace | None,
    found: Findings,
) -> None:
    """A LayerNorm after the stack: Pre-LN needs one, the others have none."""
    scheme = claim.schemes[stack.side]
    left_out = stack.side.value == "decoder" and getattr(args, "no_decoder_final_norm", False)
    due = scheme.norm is NormPlacement.PRE and not left_out
    side.norm += ", and after the stack" if normed else ""
    side.expected_norm += ", and after the stack" if due else ""
    if normed is not due:
        texts = {True: "a LayerNorm after the stack", False: "no LayerNorm after the stack"}
        where, says = f"{stack.side.value} output", mistakes_of(scheme).layer_source
        found.faults.append(Fault("norms", where, texts[normed], texts[due], "", says))
