"""Compare a model with a claim: one pipeline for our models and for any torch module."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor, nn

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
from fairseq_deepnet.tools.checking import expected, measure
from fairseq_deepnet.tools.checking.expected import Claim
from fairseq_deepnet.tools.checking.findings import (
    Fault,
    Findings,
    ResidualRow,
    StackFindings,
    inside,
    layer_numbers,
)
from fairseq_deepnet.tools.checking.layouts import Layout, find_layers
from fairseq_deepnet.tools.checking.measure import Fit, LayerFit, same

LEARNED: Final = "learned"

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
    """Measure any model and compare it with a scheme; the model stays as it is.

    Measured is what the paper prescribes: the factor of the residual, the place of LayerNorm, the
    initial weights and biases of the linear maps.

    Args:
        model: with separate linear maps, or maps in equal blocks of rows.
        batch: arguments of its forward, without padding: a mapping, a tuple, or one tensor.
        claims: name of a residual scheme.
        layers: name of a style, or a `Layout`; None tries all styles.
        trained: True if weights have moved since they were drawn, and are not judged.

    Returns:
        the findings: `is_fine`, `faults`, and all of it as text by `print`.

    Raises:
        ValueError: for an unknown claim or style, and where no layers are found.
    """
    model, batch = copy.deepcopy(model).double().eval(), _as_double(batch)
    stacks = find_layers(model, layers)
    depths = Depths(*(sum(len(s.layers) for s in stacks if s.side is side) for side in Side))
    scheme = scheme_class(claims)(depths)
    schemes = {stack.side: scheme for stack in stacks}
    claim = Claim(schemes, schemes, f"claims={claims!r} says")
    return compare(model, stacks, claim, batch, type(model).__name__, trained)


def _as_double(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch.double() if batch.is_floating_point() else batch
    if isinstance(batch, Mapping):
        return {name: _as_double(value) for name, value in batch.items()}
    return [_as_double(value) for value in batch] if isinstance(batch, tuple | list) else batch


def compare(
    model: nn.Module,
    stacks: Sequence[Stack],
    claim: Claim,
    batch: Any,
    subject: str,
    trained: bool = False,
) -> Findings:
    """Compare a model, which is not usable afterwards, with a claim.

    Args:
        batch: arguments of its forward; None draws tokens for a model of ours or fairseq's.
        subject: the model in words.
        trained: True if its weights have moved, so that they cannot be judged.

    Raises:
        ValueError: where the forward pass does not reach a layer.
    """
    sides = [StackFindings(s.side, claim.scheme_text(s.side), len(s.layers)) for s in stacks]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    findings = Findings(subject, claim.text, parameters, not trained, sides, [], [], [])
    faults = findings.faults
    faults += check_finite(model)
    check_weights(model, stacks, claim, findings)
    model.double().eval()
    batch = measure.random_batch(model, stacks) if batch is None else batch
    done = measure.run_model(model, stacks, batch)
    fits = measure.fit_residuals(model, stacks, batch)
    for stack, side, layers, streams, normed in zip(
        stacks, sides, fits, done.streams, done.normed, strict=True
    ):
        scheme, name = claim.schemes[stack.side], stack.side.value
        faults += check_residuals(stack, side, layers, scheme, findings.judged)
        due = claim.final_norms.get(stack.side, normed)
        side.norm += ", and after the stack" if normed else ""
        side.expected_norm += ", and after the stack" if due and claim.final_norms else ""
        if normed is not due:
            words = {True: "a LayerNorm after the stack", False: "no LayerNorm after the stack"}
            faults.append(Fault("norms", f"{name} output", words[normed], words[due]))
        embedding_norm = getattr(stack.module, "layernorm_embedding", None)
        if claim.whole and scheme.embedding_norm and not isinstance(embedding_norm, nn.LayerNorm):
            texts = "no LayerNorm after the embeddings", "a LayerNorm after the embeddings"
            faults.append(Fault("norms", f"{name} embeddings", *texts))
        faults += check_inputs(stack, scheme, streams)
    if not done.finite:
        faults.append(Fault("finite", "output", "not finite on a random batch", "numbers"))
    return findings


def check_finite(model: nn.Module) -> Iterable[Fault]:
    """Find parameters with NaN or infinity; these become 0, so that the rest can be measured."""
    for name, parameter in model.named_parameters():
        broken = ~torch.isfinite(parameter.detach())
        if broken.any():
            text = f"{int(broken.sum())} of {parameter.numel()} numbers are not finite"
            yield Fault("finite", name, text, "numbers")
            with torch.no_grad():
                parameter[broken] = 0.0


def check_weights(
    model: nn.Module, stacks: Sequence[Stack], claim: Claim, findings: Findings
) -> None:
    """Add rows of all parameters, and faults where they can be judged."""
    faults: list[Fault] = []
    for stack, side in zip(stacks, findings.sides, strict=True):
        maps = expected.drawn_maps(stack, claim)
        side.rows += expected.check_linears(stack.side, maps, faults)
        if not claim.whole:  # where no map has a bias, none is missed
            maps = [drawn for drawn in maps if drawn.linear.bias is not None]
        bias = claim.schemes[stack.side].bias
        side.rows += expected.check_biases(stack.side, maps, bias, faults)
        side.beta, side.expected_beta = expected.betas(side.rows)
    if claim.whole:
        findings.rows += expected.check_ends(model, stacks, claim, faults)
    if not findings.judged:
        # trained weights have no expectation; whether there are biases at all still has one
        faults = [fault for fault in faults if fault.kind == "structure"]
        findings.rows = [row.measured_only() for row in findings.rows]
        for side in findings.sides:
            side.rows, side.expected_beta = [row.measured_only() for row in side.rows], ""
    findings.faults += faults


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
        expected_layers.append(measure.expected_layer(own, scheme, layer))
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
        text = formula(want) if judged else LEARNED
        side.residuals.append(ResidualRow(sublayer.value, formula(have), text, not off))
        if off:
            measured, wanted = ([some[index] for index in off] for some in (have, want))
            key = inside(off, len(fits)), formula(measured), formula(wanted)
            groups[key].append(sublayer.value)
    side.alpha, alpha = (
        factor([fit.residual for layer in layers for fit in layer]).strip() or "1"
        for layers in (fits, due)
    )
    side.expected_alpha = alpha if judged else LEARNED
    side.norm = ", ".join(dict.fromkeys(NORM_TEXTS[fit.norm] for layer in fits for fit in layer))
    side.expected_norm = NORM_TEXTS[scheme.norm]
    faults = [
        Fault("residual", f"{stack.side.value} {', '.join(names)}{inside}", measured, wanted)
        for (inside, measured, wanted), names in groups.items()
    ]
    beside = [
        index
        for index, (a, b) in enumerate(zip(layers, expected_layers, strict=True))
        if judged and not same(a.output[:, width:], b.output[:, width:])
    ]
    if beside:
        where = f"{stack.side.value} {layer_numbers(beside)}"
        faults.append(Fault("inputs", f"{where} beside x", "other streams", scheme.name))
    return faults


def formula(fits: Sequence[Fit]) -> str:
    """Return a sublayer of all layers, such as `LN(1.999 x + G(x))`; ranges where layers differ."""
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
    """Return `1.999 `, `1.2..3.4 `, or nothing for 1."""
    least, greatest = min(low for low, _ in ends), max(high for _, high in ends)
    texts = [f"{value:.4g}" for value in (least, greatest)]
    texts = list(dict.fromkeys("0" if abs(float(text)) < measure.SAME else text for text in texts))
    return "" if texts == ["1"] else f"{'..'.join(texts)} "


def check_inputs(
    stack: Stack, scheme: ResidualScheme, streams: Sequence[Sequence[Tensor]]
) -> list[Fault]:
    """Find layers that read neither the output of the one below nor a combination that is due."""
    plain = all(same(below[1], above[0]) for below, above in pairwise(streams))
    due = scheme.build_combination(stack.side, streams[0][0].size(-1)) is None
    if len(streams) < 2 or plain is due:
        return []
    text = "each reads the output of the one below" if plain else "read more than the layer below"
    wanted = "the output of the one below" if due else "a combination of all outputs below"
    return [Fault("inputs", f"{stack.side.value} layers", text, wanted)]
