"""Comparison of a model with a claim, for our models and for any torch module."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fairseq_deepnet.anatomy import Stack
from fairseq_deepnet.schemes import (
    Depths,
    NormPlacement,
    Place,
    ResidualScheme,
    Role,
    Side,
    scheme_class,
)
from fairseq_deepnet.tools.checking import measure
from fairseq_deepnet.tools.checking.expected import Claim, check_weights
from fairseq_deepnet.tools.checking.findings import Fact, Fault, Findings, StackFindings, inside
from fairseq_deepnet.tools.checking.layouts import Layout, find_layers
from fairseq_deepnet.tools.checking.measure import Fit, LayerFit, same

LEARNED: Final = "learned"
YES_NO: Final = {True: "yes", False: "no"}
NORM_TEXTS: Final = {
    NormPlacement.POST: "after the sum",
    NormPlacement.PRE: "before the branch",
    NormPlacement.NONE: "none",
    None: "in no known place",
}


def check(
    model: nn.Module,
    batch: Any,
    claims: str = "deepnorm",
    layers: str | Layout | None = None,
    trained: bool = False,
) -> Findings:
    """Measure any model and compare it with a scheme, without changing the model.

    The measurements are the residual's factor, LayerNorm's position, and the initial weights and
    biases of the linear maps.

    Args:
        model: has separate linear maps, or combined maps with equal blocks of rows.
        batch: arguments of the model's forward, without padding: a mapping, a tuple, or one tensor.
        claims: name of a residual scheme.
        layers: name of a style, or a `Layout`; None tries all styles.
        trained: True for weights that are no longer initial, which are not judged.

    Returns:
        the findings, with `is_fine` and `faults`. Printing the findings shows the report.

    Raises:
        ValueError: for an unknown claim or style, and if there are no layers.
    """
    model = copy.deepcopy(model).double().eval()
    batch = tree_map(
        lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, batch
    )
    stacks = find_layers(model, layers)
    depths = Depths(*(sum(len(s.layers) for s in stacks if s.side is side) for side in Side))
    schemes = {stack.side: scheme_class(claims)(depths) for stack in stacks}
    claim = Claim(schemes, schemes, f"claims={claims!r} says")
    return compare(model, stacks, claim, batch, type(model).__name__, trained)


def compare(
    model: nn.Module,
    stacks: Sequence[Stack],
    claim: Claim,
    batch: Any,
    subject: str,
    trained: bool = False,
) -> Findings:
    """Compare a model with a claim; the model is not usable afterwards.

    Args:
        batch: arguments of the model's forward; None draws tokens for our or fairseq's models.
        subject: description of the model.
        trained: True for weights that are no longer initial, which are not judged.

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
        scheme, name = claim.schemes[stack.side], stack.side.value
        facts, residual_faults = check_residuals(stack, layers, scheme, findings.judged)
        norms, final_faults = check_norms(stack, layers, claim, normed)
        facts[1:1] = [beta, *norms]
        own = claim.scheme_text(stack.side)
        findings.sides.append(StackFindings(stack.side, own, len(stack.layers), facts, rows))
        faults += residual_faults + check_inputs(stack, scheme, streams) + final_faults
        norm = getattr(stack.module, "layernorm_embedding", None)
        if claim.final_norms is not None and scheme.embedding_norm and norm is None:
            text = "LayerNorm after the embeddings"
            faults.append(Fault("norms", f"{name} embeddings", f"no {text}", f"a {text}"))
        findings.faults += faults
    return findings


def check_norms(
    stack: Stack, layers: Sequence[LayerFit], claim: Claim, normed: bool
) -> tuple[list[Fact], list[Fault]]:
    """Compare LayerNorm's position in the layers, and whether one follows the stack.

    The position in the layers is part of the residual's formula, which has its own faults.
    """
    scheme = claim.schemes[stack.side]
    positions = dict.fromkeys(NORM_TEXTS[f.norm] for layer in layers for f in layer.sublayers)
    measured, expected = ", ".join(positions), NORM_TEXTS[scheme.norm]
    due, judged = scheme.norm is NormPlacement.PRE, claim.final_norms is not None
    if claim.final_norms is not None:
        due = claim.final_norms[stack.side]
    fine = (normed is due) or (False if judged else None)
    final = YES_NO[due] + (" (not judged)" if fine is None else "")
    facts = [
        Fact("LayerNorm", measured, expected, measured == expected),
        Fact("LayerNorm after the stack", YES_NO[normed], final, fine),
    ]
    texts = {True: "a LayerNorm after the stack", False: "no LayerNorm after the stack"}
    fault = Fault("norms", f"{stack.side.value} output", texts[normed], texts[due])
    return facts, [fault] if fine is False else []


def check_residuals(
    stack: Stack, layers: Sequence[LayerFit], scheme: ResidualScheme, judged: bool
) -> tuple[list[Fact], list[Fault]]:
    """Compare sublayers with the scheme's residuals for the same stream and branch.

    Returns:
        alpha, each sublayer's formula, and the faults.
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
    fits, due = ([layer.sublayers for layer in each] for each in (layers, expected_layers))
    facts, groups = [], defaultdict(list)
    for position, sublayer in enumerate(sublayers):
        have, want = ([layer[position] for layer in each] for each in (fits, due))
        off = [
            index
            for index, (a, b) in enumerate(zip(have, want, strict=True))
            if a.norm is not b.norm or (judged and not (same(a.z, b.z) and same(a.entry, b.entry)))
        ]
        expected = formula(want) if judged else LEARNED
        facts.append(Fact(sublayer.value, formula(have), expected, not off))
        if off:
            texts = (formula([each[index] for index in off]) for each in (have, want))
            groups[inside(off, len(fits)), *texts].append(sublayer.value)
    faults = [
        Fault("residual", f"{stack.side.value} {', '.join(names)}{where}", measured, expected)
        for (where, measured, expected), names in groups.items()
    ]
    measured, expected = (
        factor([fit.residual for layer in each for fit in layer]).strip() or "1"
        for each in (fits, due)
    )
    fine = not faults or measured == expected
    alpha = Fact("alpha", measured, *((expected, fine) if judged else (LEARNED, None)))
    pairs = zip(layers, expected_layers, strict=True)
    if judged and not all(same(a.output[:, width:], b.output[:, width:]) for a, b in pairs):
        where = f"{stack.side.value} layers, beside x"
        faults.append(Fault("inputs", where, "other streams", scheme.name))
    return [alpha, *facts], faults


def formula(fits: Sequence[Fit]) -> str:
    """Return the formula of sublayers, such as `LN(1.999 x + G(x))`, with ranges if they differ."""
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
    """Compare the layers' inputs with the output of the layer below, or a scheme's combination."""
    plain = all(same(below[1], above[0]) for below, above in pairwise(streams))
    due = scheme.build_combination(stack.side, streams[0][0].size(-1)) is None
    if len(streams) < 2 or plain is due:
        return []
    texts = {
        True: "inputs are the output of the layer below",
        False: "inputs are a combination of all outputs below",
    }
    return [Fault("inputs", f"{stack.side.value} layers", texts[plain], texts[due])]
