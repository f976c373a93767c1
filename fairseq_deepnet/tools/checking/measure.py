"""Measurements of a Transformer's forward pass, which do not rely on the model's attributes.

`fit_residuals` gives every layer a random input, in float64 and evaluation mode. Hooks record the
inputs and outputs of branches and norms, and z = a x + c b is solved by least squares. Here, x is
the residual stream before a sublayer, and b is the branch's output. z is LayerNorm's input if
LayerNorm follows the sum, otherwise the stream after the sublayer. The factor a is the measured
alpha. `run_model` records each layer's input in the unchanged model.

Shapes: recorded tensors are flattened to [n, C] (n = tokens in the batch, C = channels).
"""

import dataclasses
import inspect
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from fairseq_deepnet.anatomy import Layer, Stack
from fairseq_deepnet.schemes import NormPlacement, Residual, ResidualScheme

SAME: Final = 1e-5
"""Relative distance up to which tensors count as equal; some layers partly compute in float32."""

SOURCE, TARGET, SENTENCES, FIRST_WORD = 11, 13, 4, 4  # of the random batch

Calls = dict[nn.Module, list[list[Tensor]]]
"""Input and output, [n, C] each, of every call to a module."""


@dataclasses.dataclass(frozen=True, repr=False)
class Fit:
    """Least-squares fit of z = a x + c b for one sublayer.

    Args:
        norm: position of LayerNorm, or None if NormPlacement does not list it.
        residual, branch: factors a and c, each as the smallest and largest value over channels.
        bottom: factor of the layer's input if the sum includes this input, else 0.
        inner: ratio of the branch's input to LayerNorm's output; 0 if they are not proportional.
        error: residual error of least squares, relative to z.
        x, b, z, entry: [n, C]; `entry` is the branch's input.
        normed: output of the sublayer's LayerNorm, [n, C]; after the sum, with any later factor.
    """

    norm: NormPlacement | None
    residual: tuple[float, float]
    branch: tuple[float, float]
    bottom: float
    inner: float
    error: float
    x: Tensor
    b: Tensor
    z: Tensor
    entry: Tensor
    normed: Tensor | None


@dataclasses.dataclass(frozen=True, repr=False)
class LayerFit:
    """Fits of a layer's sublayers, with its input and output [n, C] (wider for several streams)."""

    sublayers: list[Fit]
    input: Tensor
    output: Tensor


def random_batch(model: nn.Module, stacks: Sequence[Stack]) -> dict[str, Tensor]:
    """Draw random tokens without padding, as keyword arguments for the model's forward method.

    Raises:
        ValueError: if the stacks have no embed_tokens.
    """
    sizes = [stack.table.num_embeddings for stack in stacks if stack.table is not None]
    if not sizes:
        raise ValueError(f"{type(model).__name__} has no embed_tokens in its stacks")
    source = torch.randint(FIRST_WORD, sizes[0], (SENTENCES, SOURCE))
    target = torch.randint(FIRST_WORD, sizes[-1], (SENTENCES, TARGET))
    lengths = torch.full((SENTENCES,), SOURCE)
    batch = {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": target}
    parameters = inspect.signature(model.forward).parameters
    return {name: value for name, value in batch.items() if name in parameters}


def rms(x: Tensor) -> float:
    """Return the root mean square in float64, which is the standard deviation around 0."""
    return float(x.detach().double().square().mean().sqrt())


def same(a: Tensor, b: Tensor) -> bool:
    """Return True if two tensors are equal, except for rounding."""
    return a.shape == b.shape and bool((a - b).norm() <= SAME * b.norm())


def first_tensor(output: Any) -> Tensor:
    """Return a module's output, or the first tensor in a nested output."""
    while not isinstance(output, Tensor):
        output = next(iter(output.values())) if isinstance(output, dict) else output[0]
    return output


@contextmanager
def recording(
    modules: Iterable[nn.Module], randomised: Container[nn.Module] = ()
) -> Iterator[Calls]:
    """Record the inputs and outputs of modules.

    Modules in `randomised` receive a random input, so that faults in lower layers do not affect
    their calls.
    """
    calls: Calls = defaultdict(list)

    def flat(x: Tensor) -> Tensor:
        # a copy, as layers may modify their tensors in place
        return x.detach().reshape(-1, x.size(-1)).clone()

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name, x = (None, args[0]) if args else next(iter(kwargs.items()))
        if module in randomised:
            x = torch.randn_like(x)
            args, kwargs = (args, {**kwargs, name: x}) if name else ((x, *args[1:]), kwargs)
        calls[module].append([flat(x)])
        return args, kwargs

    def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        calls[module][-1].append(flat(first_tensor(output)))

    hooks: list[Any] = []
    for module in dict.fromkeys(modules):
        hooks.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        hooks.append(module.register_forward_hook(leave))
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def run_on(model: nn.Module, batch: Any) -> Tensor:
    """Call a model with a mapping, a sequence or one argument; return its first output tensor."""
    if isinstance(batch, Mapping):
        return first_tensor(model(**batch))
    return first_tensor(model(*batch) if isinstance(batch, tuple | list) else model(batch))


def is_norm(module: nn.Module) -> bool:
    """Return True for a module without children whose class name contains "norm"."""
    return "norm" in type(module).__name__.lower() and not any(module.children())


def norms_of(layer: Layer) -> list[nn.Module]:
    """Return the normalisation modules of a layer's branches, in any order."""
    norms = [branch.norm for branch in layer.branches if branch.norm is not None]
    within = {part for branch in layer.branches for part in branch.entry.modules()}
    beside = [part for part in layer.module.modules() if is_norm(part) and part not in within]
    return norms or beside


@torch.no_grad()
def run_model(
    model: nn.Module, stacks: Sequence[Stack], batch: Any
) -> list[tuple[list[list[Tensor]], bool]]:
    """Run the unchanged model and record each layer's input and output.

    Returns:
        for each stack, each layer's input and output, and whether a norm follows the stack.

    Raises:
        ValueError: if the forward pass does not reach a layer.
    """
    norms = [module for module in model.modules() if is_norm(module)]
    layers = [layer.module for stack in stacks for layer in stack.layers]
    with recording([*norms, *layers]) as calls:
        run_on(model, batch)
    measured = []
    for stack in stacks:
        for layer in stack.layers:
            if not calls[layer.module]:
                raise ValueError(f"{layer.name} takes no part in the forward pass")
        streams = [calls[layer.module][0] for layer in stack.layers]
        last, final = streams[-1][1], getattr(stack.module, "layer_norm", None)
        follows = any(calls[norm] and same(calls[norm][0][0], last) for norm in norms)
        measured.append((streams, follows if final is None else bool(calls[final])))
    return measured


def fit_residuals(model: nn.Module, stacks: Sequence[Stack], batch: Any) -> list[list[LayerFit]]:
    """Fit every sublayer of each stack.

    The model must be in float64 and evaluation mode. Linear maps whose weights are all zero get
    random weights, because zeros would hide the branch's factor.

    Raises:
        ValueError: if the forward pass does not reach a branch.
    """
    layers = [layer for stack in stacks for layer in stack.layers]
    modules = [layer.module for layer in layers]
    branches = [branch for layer in layers for branch in layer.branches]
    ends = [end for branch in branches for end in (branch.entry, branch.exit)]
    norms = {layer.name: norms_of(layer) for layer in layers}
    watched = [*modules, *ends, *(norm for group in norms.values() for norm in group)]
    for linear in (each for branch in branches for each in branch.linears.values()):
        if not linear.weight.any():
            nn.init.xavier_normal_(linear.weight)
    with recording(watched, set(modules)) as calls, torch.no_grad():
        run_on(model, batch)
    return [[fit_layer(layer, norms[layer.name], calls) for layer in s.layers] for s in stacks]


def fit_layer(layer: Layer, norms: Sequence[nn.Module], calls: Calls) -> LayerFit:
    """Fit a layer's sublayers.

    In Pre-LN and in Post-LN, a branch reads a norm's output. The stream to which the branch's
    output is added is that norm's input in Pre-LN and its output in Post-LN.
    """
    whole = calls[layer.module].pop(0)
    entries, outputs = [], []
    for branch in layer.branches:
        if not (calls[branch.entry] and calls[branch.exit]):
            raise ValueError(f"{layer.name}: {branch.sublayer.value} is not called")
        first = calls[branch.entry].pop(0)
        last = first if branch.exit is branch.entry else calls[branch.exit].pop(0)
        entries.append(first[0])
        outputs.append(last[1])
    norm_calls = {norm: calls[norm].pop(0) for norm in norms if calls[norm]}
    # each branch's input and the layer's output, with the norms that produced these tensors
    bottom, top = (x[:, : outputs[-1].size(-1)] for x in whole)
    reads = [*entries, top]
    sources = [
        next((norm for norm, call in norm_calls.items() if times(call[1], read)), None)
        for read in reads
    ]
    sums = [
        read if norm is None else norm_calls[norm][0]
        for norm, read in zip(sources, reads, strict=True)
    ]
    is_pre = []
    for i, (norm, b) in enumerate(zip(sources, outputs, strict=False)):
        # a scheme may also add the layer's input, which is x for the first branch
        terms = [sums[i + 1], b, bottom] if i else [sums[i + 1], b]
        errors = [
            solve(*(tensor.reshape(1, -1) for tensor in (*terms, x)))[1]
            for x in (sums[i], reads[i])
        ]
        is_pre.append(norm is not None and errors[0] < errors[1])
    is_pre.append(False)
    streams = [sums[i] if pre else reads[i] for i, pre in enumerate(is_pre)]
    norms_used = [
        sources[i] if is_pre[i] else None if is_pre[i + 1] else sources[i + 1]
        for i in range(len(outputs))
    ]
    unused = [norm for norm in norm_calls if norm not in norms_used]
    fits = []
    for i, norm in enumerate(norms_used):
        placement: NormPlacement | None = NormPlacement.NONE
        z, inner = streams[i + 1], 0.0
        if norm is not None and is_pre[i]:
            placement, inner = NormPlacement.PRE, times(norm_calls[norm][1], entries[i])
        elif norm is not None:
            placement, z = NormPlacement.POST, norm_calls[norm][0]
        elif unused:
            norm, placement = unused.pop(0), None
        fitted = fit(placement, streams[i], outputs[i], z, streams[0])
        normed = None if norm is None else norm_calls[norm][1]
        if placement is NormPlacement.POST:
            normed = reads[i + 1]  # a multiple of the norm's output
        fits.append(dataclasses.replace(fitted, inner=inner, entry=entries[i], normed=normed))
    return LayerFit(fits, *whole)


def times(a: Tensor, b: Tensor) -> float:
    """Return the factor f for which b = f * a, or 0 if no such factor exists."""
    factor = float((a * b).sum() / a.square().sum())
    return factor if same(factor * a, b) else 0.0


def solve(z: Tensor, *terms: Tensor) -> tuple[Tensor, float]:
    """Solve z = sum(factors * terms) + constant by least squares, separately for G groups.

    Args:
        z, terms: [G, n]

    Returns:
        factors and constant, [G, number of terms + 1], and the norm of the error relative to z.
    """
    columns = torch.stack([*terms, torch.ones_like(z)], dim=-1)
    factors = torch.linalg.lstsq(columns, z.unsqueeze(-1)).solution.squeeze(-1)
    error = (columns @ factors.unsqueeze(-1)).squeeze(-1) - z
    return factors, float(error.norm() / z.norm())


def fit(norm: NormPlacement | None, x: Tensor, b: Tensor, z: Tensor, bottom: Tensor) -> Fit:
    """Solve z = a x + c b + d for the factors a and c and the constant d.

    If no values are exact for all channels, fit each channel separately. If this fit is not exact
    either, add a multiple of the layer's input `bottom` as a third term for all channels.
    """
    together = [tensor.reshape(1, -1) for tensor in (z, x, b, bottom)]
    factors, error = solve(*together[:3])
    for terms in ([z.t(), x.t(), b.t()], together):
        if error > SAME:
            attempt = solve(*terms)
            factors, error = attempt if attempt[1] <= SAME else (factors, error)
    weight = float(factors[0, 2]) if factors.size(1) == 4 else 0.0
    a, c = ((float(v.min()), float(v.max())) for v in (factors[:, 0], factors[:, 1]))
    return Fit(norm, a, c, weight, 0.0, error, x, b, z, x, None)


@torch.no_grad()
def expected_layer(
    residuals: Sequence[Residual], scheme: ResidualScheme, measured: LayerFit
) -> LayerFit:
    """Fit the values that a scheme computes from a layer's measured streams and branches."""
    width = measured.sublayers[0].x.size(-1)
    stream: Any = measured.input[:, : scheme.streams * width]
    fits: list[Fit] = []
    for residual, actual in zip(residuals, measured.sublayers, strict=True):
        residual.double()
        if fits:  # an error in a lower sublayer is reported only there
            stream = actual.x if isinstance(stream, Tensor) else (actual.x, *stream[1:])
        summed: list[Tensor] = []

        def layer_norm(y: Tensor, actual: Fit = actual, summed: list[Tensor] = summed) -> Tensor:
            summed.append(y)
            return y if actual.normed is None else actual.normed

        entry = residual.enter(stream, layer_norm)
        summed.clear()
        stream = residual.leave(stream, actual.b, layer_norm, nn.Identity())
        z = summed[0] if summed else first_tensor(stream)
        due = fit(scheme.norm, actual.x, actual.b, z, measured.sublayers[0].x)
        inner = 0.0 if actual.normed is None else times(actual.normed, entry)
        fits.append(dataclasses.replace(due, inner=inner, entry=entry))
    return LayerFit(fits, measured.input, stream)
