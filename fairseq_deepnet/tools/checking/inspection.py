"""The whole check of one model: what is claimed, what is measured, and where they differ."""

from __future__ import annotations

import dataclasses
import math
from argparse import Namespace
from collections.abc import Sequence

from torch import nn

from fairseq_deepnet.anatomy import Stack, find_stacks, kind_of
from fairseq_deepnet.schemes import ResidualScheme
from fairseq_deepnet.schemes.base import VALUE_PATH
from fairseq_deepnet.tools.checking import usage, weights, wiring
from fairseq_deepnet.tools.checking.behaviour import measure
from fairseq_deepnet.tools.checking.claim import Claim, make_claim
from fairseq_deepnet.tools.checking.findings import Fault, Findings, Row, SideFindings
from fairseq_deepnet.tools.checking.joins import check_final_norm, compare_joins
from fairseq_deepnet.tools.checking.recording import random_batch

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
    sides = [
        SideFindings(stack.side, _scheme_text(claim, stack), len(stack.layers)) for stack in stacks
    ]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    off = [*faults, *wiring.check_finite(model)]
    found = Findings(subject, claim.text, parameters, not trained, sides, [], list(notes), off)
    measure_weights(model, stacks, claim, found)
    found.faults += wiring.check_sharing(model, stacks, claim)
    found.faults += wiring.check_copies(model)
    found.faults += wiring.check_reach(model)
    model.double().eval()
    for stack in stacks:
        found.faults += usage.check_extras(stack, claim)
    measure_behaviour(model, stacks, claim, args, found)
    if not trained:
        found.notes += _set_later(claim)
    return found


def _scheme_text(claim: Claim, stack: Stack) -> str:
    scheme = claim.schemes[stack.side]
    variant = f", variant {scheme.variant}" if scheme.variant else ""
    stock = "" if claim.scaled_ends else ", stock initialisation"
    return f"{scheme.name}{variant}{stock}"


def _set_later(claim: Claim) -> list[str]:
    """A note where the scheme completes a new model in its first training batch."""
    if all(type(scheme).prepare is ResidualScheme.prepare for scheme in claim.schemes.values()):
        return []
    return ["the scheme sets a part of its residuals in the first training batch: not set yet"]


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
