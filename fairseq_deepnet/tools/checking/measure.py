"""Measure what a Transformer does by running it, whatever its attributes say.

`fit_residuals` gives every layer a random input, in float64 and evaluation mode. Hooks record what
enters and leaves branches and norms, and z = a x + c b is solved by least squares: x is the stream
before a sublayer, b the branch's output, z the input of LayerNorm where that follows the sum, else
the stream after the sublayer. So alpha is what multiplies the stream. `run_backward` runs the model
as it is, for gradients and for what each layer reads.

Shapes: n = tokens of the batch, C = channels; recorded tensors are flattened to [n, C].
"""

from __future__ import annotations

import dataclasses
import inspect
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from fairseq_deepnet.anatomy import Layer, Stack
from fairseq_deepnet.schemes import NormPlacement, Residual, Role

SAME: Final = 1e-5
"""Relative distance up to which two tensors are the same: some layers compute a part in float32."""

SOURCE, TARGET, SENTENCES, FIRST_WORD = 11, 13, 4, 4  # of the random batch

Calls = dict[nn.Module, list[list[Tensor]]]
"""Input and output, [n, C] each, of every call of a module."""


@dataclasses.dataclass(frozen=True)
class Fit:
    """z = a x + c b, fitted to one sublayer.

    Args:
        norm: where LayerNorm stands; None where it stands in none of the known places.
        residual: a, the least and the greatest of the channels.
        branch: c, the same.
        error: what least squares leaves, relative to z.
        x, b, z: [n, C].
    """

    norm: NormPlacement | None
    residual: tuple[float, float]
    branch: tuple[float, float]
    error: float
    x: Tensor = dataclasses.field(repr=False)
    b: Tensor = dataclasses.field(repr=False)
    z: Tensor = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Backward:
    """One forward and backward pass of a random loss.

    Args:
        unused: parameters that have no gradient.
        zero: parameters of which the gradient is 0 everywhere.
        finite: whether the output is.
        streams: of each stack, by name, the calls of its layers, bottom first.
    """

    unused: list[str]
    zero: list[str]
    finite: bool
    streams: dict[str, list[list[Tensor]]]


def random_batch(model: nn.Module, stacks: Sequence[Stack]) -> dict[str, Tensor]:
    """Draw tokens for the arguments of the model's forward, without padding."""
    sizes = []
    for stack in stacks:
        if stack.table is None:
            raise ValueError(
                f"{stack.name} has no embed_tokens: the check cannot make a batch for it"
            )
        sizes.append(int(stack.table.num_embeddings))
    source = torch.randint(FIRST_WORD, sizes[0], (SENTENCES, SOURCE))
    target = torch.randint(FIRST_WORD, sizes[-1], (SENTENCES, TARGET))
    lengths = torch.full((SENTENCES,), SOURCE)
    batch = {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": target}
    wanted = inspect.signature(model.forward).parameters
    return {name: value for name, value in batch.items() if name in wanted}


def rms(x: Tensor) -> float:
    """Return the root mean square in float64: the standard deviation around 0."""
    return float(x.detach().double().square().mean().sqrt())


def same(a: Tensor, b: Tensor) -> bool:
    """Return True if two tensors are the same but for rounding."""
    return a.shape == b.shape and bool((a - b).norm() <= SAME * b.norm())


def first_tensor(output: Any) -> Tensor:
    """Return the output of a module, or the first tensor in it."""
    while not isinstance(output, Tensor):
        output = next(iter(output.values())) if isinstance(output, dict) else output[0]
    return output


@contextmanager
def recording(
    modules: Iterable[nn.Module | None], randomised: Container[nn.Module] = ()
) -> Iterator[Calls]:
    """Record the calls of modules; those in `randomised` get a random input, so that no layer sees
    what is wrong below it.
    """
    calls: Calls = defaultdict(list)

    def flat(x: Tensor) -> Tensor:
        # a copy: layers may go on with their tensor in place
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
        if module is not None:
            hooks.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.append(module.register_forward_hook(leave))
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def next_call(calls: Calls, module: nn.Module | None) -> list[Tensor] | None:
    """Take the first call of a module that is left; None where there is none."""
    return calls[module].pop(0) if module is not None and calls[module] else None


@contextmanager
def zeros_filled(stacks: Sequence[Stack]) -> Iterator[None]:
    """Give linear maps that are 0 random weights for a while: 0 hides what follows it."""
    empty = [linear.weight for stack in stacks for *_, linear in stack.linears()]
    empty = [weight for weight in empty if not weight.any()]
    for weight in empty:
        nn.init.xavier_normal_(weight)
    try:
        yield
    finally:
        for weight in empty:
            nn.init.zeros_(weight)


def fit_residuals(
    model: nn.Module, stacks: Sequence[Stack], batch: dict[str, Tensor]
) -> tuple[list[list[list[Fit]]], list[bool]]:
    """Fit every sublayer: of each stack the layers, of these the sublayers.

    The second list says whether each stack's final norm is applied. The model must be in float64
    and evaluation mode.

    Raises:
        ValueError: where the forward pass does not reach a layer or a branch.
    """
    layers = [layer for stack in stacks for layer in stack.layers]
    branches = [branch for layer in layers for branch in layer.branches]
    modules = [layer.module for layer in layers]
    parts = [module for b in branches for module in (b.entry, b.exit, b.norm)]
    watched = [*modules, *parts, *(stack.final_norm for stack in stacks)]
    with zeros_filled(stacks), recording(watched, set(modules)) as calls, torch.no_grad():
        model(**batch)
    fits = [[fit_layer(layer, calls) for layer in stack.layers] for stack in stacks]
    return fits, [next_call(calls, stack.final_norm) is not None for stack in stacks]


def fit_layer(layer: Layer, calls: Calls) -> list[Fit]:
    """Fit the sublayers of a layer."""
    whole = next_call(calls, layer.module)
    if whole is None:
        raise ValueError(f"{layer.name} takes no part in the forward pass")
    entries, outputs, norms = [], [], []
    for branch in layer.branches:
        first = next_call(calls, branch.entry)
        last = first if branch.exit is branch.entry else next_call(calls, branch.exit)
        if first is None or last is None:
            raise ValueError(f"{layer.name}: {branch.sublayer.value} is not called")
        entries.append(first[0])
        outputs.append(last[1])
        norms.append(next_call(calls, branch.norm))
    # the stream before each sublayer, and after the last
    streams = [
        norm[0] if norm is not None and same(norm[1], entry) else entry
        for norm, entry in zip(norms, entries, strict=True)
    ]
    streams.append(whole[1])
    fits = []
    for index, (entry, output, norm) in enumerate(zip(entries, outputs, norms, strict=True)):
        placement: NormPlacement | None = None
        z = streams[index + 1]
        if norm is None:
            placement = NormPlacement.NONE
        elif same(norm[1], entry):
            placement = NormPlacement.PRE
        elif same(norm[1], z):
            placement, z = NormPlacement.POST, norm[0]
        fits.append(fit(placement, streams[index], output, z))
    return fits


def fit(norm: NormPlacement | None, x: Tensor, b: Tensor, z: Tensor) -> Fit:
    """Solve z = a x + c b + d: one a and c if that is exact, else one a channel if that is."""
    columns = torch.stack([x, b, torch.ones_like(x)], dim=-1)
    # [1, 3]
    factors = torch.linalg.lstsq(columns.flatten(0, 1), z.flatten().unsqueeze(-1)).solution.t()
    fitted = columns @ factors[0]
    if not same(fitted, z):
        # [C, n, 3] and [C, n, 1] -> [C, 3, 1]
        each = torch.linalg.lstsq(columns.transpose(0, 1), z.t().unsqueeze(-1)).solution
        by_channel = (columns.transpose(0, 1) @ each).squeeze(-1).t()
        if same(by_channel, z):
            factors, fitted = each.squeeze(-1), by_channel
    a, c = ((float(v.min()), float(v.max())) for v in (factors[:, 0], factors[:, 1]))
    return Fit(norm, a, c, float((fitted - z).norm() / z.norm()), x, b, z)


def expected_fit(residual: Residual, norm: NormPlacement, measured: Fit) -> Fit:
    """Fit what a scheme's residual makes of the same stream and branch."""
    with torch.no_grad():
        z = residual.double().leave(measured.x, measured.b, nn.Identity(), nn.Identity())
    return fit(norm, measured.x, measured.b, z)


def run_backward(model: nn.Module, stacks: Sequence[Stack], batch: dict[str, Tensor]) -> Backward:
    """Run the model as it is forward and backward, with a random loss."""
    model.zero_grad(set_to_none=True)
    with recording(layer.module for stack in stacks for layer in stack.layers) as calls:
        output = first_tensor(model(**batch))
    streams = {
        stack.name: [call for layer in stack.layers if (call := next_call(calls, layer.module))]
        for stack in stacks
    }
    (output * torch.randn_like(output)).sum().backward()
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    unused = [name for name, p in trained if p.grad is None]
    # softmax does not see what all keys have in common: the gradient of their bias is 0
    key_bias = f"{Role.K_PROJ}.bias"
    zero = [
        name
        for name, p in trained
        if p.grad is not None and not p.grad.any() and not name.endswith(key_bias)
    ]
    model.zero_grad(set_to_none=True)
    return Backward(unused, zero, bool(torch.isfinite(output).all()), streams)
