"""Compare a model with a claim, and report where the two differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor, nn

from fairseq_deepnet.anatomy import Stack
from fairseq_deepnet.models.scheme_options import frozen_norms
from fairseq_deepnet.schemes import NormPlacement, Place, ResidualScheme, Role
from fairseq_deepnet.tools.checking.findings import (
    Fault,
    Findings,
    ResidualRow,
    StackFindings,
    counted,
    inside,
    layer_numbers,
)
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
from fairseq_deepnet.tools.checking.weights import Claim, check_weights
from fairseq_deepnet.tools.tables import listed

HALF_PRECISION_LIMIT: Final = 65504.0
SMALL: Final = 1e-2
"""What tensors of zeros are moved by, to see what is behind them."""
LEARNED: Final = "learned"

NORM_TEXTS: Final = {
    NormPlacement.POST: "after the sum",
    NormPlacement.PRE: "before the branch",
    NormPlacement.NONE: "none",
    None: "in no known place",
}


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
    found.faults += check_trainable(model, claim)
    model.double().eval()
    check_forward(model, stacks, claim, random_batch(model, stacks), found)
    set_later = any(
        type(scheme).prepare is not ResidualScheme.prepare for scheme in claim.schemes.values()
    )
    if set_later and not trained:
        found.notes.append(
            "the scheme sets a part of its residuals in the first training batch: not set yet"
        )
    return found


# Which tensors there are


def check_finite(model: nn.Module) -> Iterable[Fault]:
    """Find parameters with NaN or infinity; these become 0, so that the rest can be measured."""
    for name, parameter in model.named_parameters():
        broken = ~torch.isfinite(parameter.detach())
        if broken.any():
            found = f"{int(broken.sum())} of {parameter.numel()} numbers are not finite"
            yield Fault("finite", name, found, "numbers")
            with torch.no_grad():
                parameter[broken] = 0.0


def check_trainable(model: nn.Module, claim: Claim) -> list[Fault]:
    """Find what the optimiser will not train: frozen parameters, unregistered tensors."""
    meant = frozen_norms(model, claim.frozen)

    def leaves(value: object) -> Iterable[Tensor]:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, nn.Module):
            yield from value.parameters()
        elif isinstance(value, list | tuple | dict):
            for item in value.values() if isinstance(value, dict) else value:
                yield from leaves(item)

    faults = []
    untrained = [name for name, p in model.named_parameters() if not p.requires_grad]
    if frozen := [name for name in untrained if name not in meant]:
        text = f"{counted(len(frozen), 'parameter')} without requires_grad"
        faults.append(Fault("reach", listed(frozen), text, "trained by the optimiser"))
    if thawed := [name for name in meant if name not in untrained]:
        text = f"{counted(len(thawed), 'parameter')} with requires_grad"
        faults.append(Fault("reach", listed(thawed), text, f"--freeze-norms {claim.frozen}"))
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


# What a forward and a backward pass show


def check_forward(
    model: nn.Module,
    stacks: Sequence[Stack],
    claim: Claim,
    batch: dict[str, Tensor],
    found: Findings,
) -> None:
    """Compare residual connections, and find which parameters matter; note the stream's growth."""
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
            key = inside(off, len(fits)), formula(measured), formula(wanted)
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
        streams = layers[0].output.size(1) // width
        texts = "another sum", "the sum of all branches"
        if streams != scheme.streams:
            texts = counted(streams - 1, "tensor"), counted(scheme.streams - 1, "tensor")
        faults.append(Fault("inputs", f"{where} beside x", *texts))
    return faults


def formula(fits: Sequence[Fit]) -> str:
    """Return a sublayer of all layers, such as `LN(1.999 x + G(x))`; ranges where layers differ."""
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
    """Return `1.999 `, `1.2..3.4 `, or nothing for 1."""
    least, greatest = min(low for low, _ in ends), max(high for _, high in ends)
    texts = [f"{value:.4g}" for value in (least, greatest)]
    texts = list(dict.fromkeys("0" if abs(float(text)) < SAME else text for text in texts))
    return "" if texts == ["1"] else f"{'..'.join(texts)} "


def check_final_norm(side: StackFindings, normed: bool, due: bool) -> list[Fault]:
    """Compare whether a LayerNorm follows the stack: Pre-LN needs one."""
    side.norm += ", and after the stack" if normed else ""
    side.expected_norm += ", and after the stack" if due else ""
    texts = {True: "a LayerNorm after the stack", False: "no LayerNorm after the stack"}
    where = f"{side.side.value} output"
    return [] if normed is due else [Fault("norms", where, texts[normed], texts[due])]


def check_inputs(
    stack: Stack, scheme: ResidualScheme, streams: Sequence[Sequence[Tensor]]
) -> list[Fault]:
    """Find layers that read neither the output of the one below nor a combination that is due."""
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
    """Find parameters without a gradient.

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
