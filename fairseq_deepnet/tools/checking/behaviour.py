"""How branches join the residual stream, found by running the layers.

Every layer is given a random input in float64 and evaluation mode. What enters and leaves branches
and norms is recorded by hooks, and z = a x + c b is solved by least squares: x is the stream before
a sublayer, b the branch's output, z what LayerNorm is given where it follows the sum, else the
stream after the sublayer. So alpha is what the layer does, whatever its attributes say.

Shapes: n = tokens of the batch, C = channels; tensors are flattened to [n, C].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from fairseq_deepnet.anatomy import Layer, Stack
from fairseq_deepnet.schemes import NormPlacement, Residual
from fairseq_deepnet.tools.checking.recording import Recorder, filled, recording

SAME: Final = 1e-5
"""Relative distance up to which two tensors are one: some layers compute a part in float32."""


@dataclasses.dataclass(frozen=True)
class Join:
    """z = a x + c b, as measured in one sublayer.

    Arguments:
        norm: where LayerNorm stands; None where none of the known places fits
        residual: a, the least and the greatest of the channels
        branch: c, the same
        error: what least squares leaves, relative to z
        x, b, z: [n, C]
    """

    norm: NormPlacement | None
    residual: tuple[float, float]
    branch: tuple[float, float]
    error: float
    x: Tensor = dataclasses.field(repr=False)
    b: Tensor = dataclasses.field(repr=False)
    z: Tensor = dataclasses.field(repr=False)

    @property
    def alpha(self) -> float:
        """What multiplies the residual, the channels' middle."""
        return sum(self.residual) / 2


def measure(
    model: nn.Module, stacks: Sequence[Stack], batch: dict[str, Tensor]
) -> tuple[list[list[list[Join]]], list[bool]]:
    """Joins of each stack, layer and sublayer, and whether each stack's final norm is applied.

    The model must be in float64 and evaluation mode.
    """
    with filled(stacks), recording(stacks) as recorder, torch.no_grad():
        model(**batch)
    joins = [[measure_layer(layer, recorder) for layer in stack.layers] for stack in stacks]
    return joins, [recorder.call(stack.final_norm) is not None for stack in stacks]


def measure_layer(layer: Layer, recorder: Recorder) -> list[Join]:
    """Joins of a layer's sublayers; ValueError where the forward pass did not reach a branch."""
    outer = recorder.call(layer.module)
    if outer is None:
        raise ValueError(f"{layer.name} takes no part in the forward pass")
    entries, outputs, norms = [], [], []
    for branch in layer.branches:
        entered = recorder.call(branch.entry)
        left = entered if branch.exit is branch.entry else recorder.call(branch.exit)
        if entered is None or left is None:
            raise ValueError(f"{layer.name}: {branch.sublayer.value} is not called")
        entries.append(entered[0])
        outputs.append(left[1])
        norms.append(recorder.call(branch.norm))
    # the stream before each sublayer, and after the last
    streams = [
        norm[0] if norm is not None and same(norm[1], entry) else entry
        for norm, entry in zip(norms, entries, strict=True)
    ]
    streams.append(outer[1])
    return [
        join(streams[i], outputs[i], streams[i + 1], entries[i], norms[i])
        for i in range(len(entries))
    ]


def join(
    x: Tensor, b: Tensor, after: Tensor, entry: Tensor, norm: tuple[Tensor, Tensor] | None
) -> Join:
    """One sublayer: where its norm stands, then the fit."""
    placement: NormPlacement | None = None
    z = after
    if norm is None:
        placement = NormPlacement.NONE
    elif same(norm[1], entry):
        placement = NormPlacement.PRE
    elif same(norm[1], after):
        placement, z = NormPlacement.POST, norm[0]
    return fit(placement, x, b, z)


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are one, but for rounding."""
    return a.shape == b.shape and bool((a - b).norm() <= SAME * b.norm())


def fit(norm: NormPlacement | None, x: Tensor, b: Tensor, z: Tensor) -> Join:
    """z = a x + c b + d by least squares: one a and c if that is exact, else one a channel."""
    one = torch.ones_like(x)
    columns = torch.stack([x, b, one], dim=-1)
    whole = torch.linalg.lstsq(columns.flatten(0, 1), z.flatten().unsqueeze(-1)).solution
    if not same((columns @ whole).squeeze(-1), z):
        # [C, n, 3] and [C, n, 1]
        each = torch.linalg.lstsq(columns.transpose(0, 1), z.t().unsqueeze(-1)).solution
        fitted = (columns.transpose(0, 1) @ each).squeeze(-1).t()
        if same(fitted, z):
            return _join(norm, each[:, 0, 0], each[:, 1, 0], (x, b, z), fitted)
    return _join(norm, whole[:1, 0], whole[1:2, 0], (x, b, z), (columns @ whole).squeeze(-1))


def _join(
    norm: NormPlacement | None, a: Tensor, c: Tensor, streams: tuple[Tensor, ...], fitted: Tensor
) -> Join:
    x, b, z = streams
    error = float((fitted - z).norm() / z.norm())
    ends = [(float(values.min()), float(values.max())) for values in (a, c)]
    return Join(norm, ends[0], ends[1], error, x, b, z)


def expected_join(residual: Residual, norm: NormPlacement, found: Join) -> Join:
    """What a scheme's residual makes of the same stream and branch."""
    with torch.no_grad():
        z = residual.double().leave(found.x, found.b, nn.Identity(), nn.Identity())
    return fit(norm, found.x, found.b, z)


def formula(joins: Sequence[Join]) -> str:
    """A sublayer of all layers, such as `LN(1.999 x + G(x))`; ranges where layers differ."""
    norms = list(dict.fromkeys(join.norm for join in joins))
    if len(norms) > 1:
        return " or ".join(formula([j for j in joins if j.norm is norm]) for norm in norms)
    a = factor([join.residual for join in joins])
    c = factor([join.branch for join in joins])
    inner = "LN(x)" if norms[0] is NormPlacement.PRE else "x"
    exact = all(join.error <= SAME for join in joins)
    branch = f"{c}G({inner})" if exact else f"T(G({inner}))"
    total = f"{a}x + {branch}"
    return {
        NormPlacement.POST: f"LN({total})",
        NormPlacement.PRE: total,
        NormPlacement.NONE: total,
        None: f"{total}, its LayerNorm neither before the branch nor after the sum",
    }[norms[0]]


def factor(ends: Sequence[tuple[float, float]]) -> str:
    """`1.999 `, `1.2..3.4 `, or nothing for 1."""
    least, greatest = min(low for low, _ in ends), max(high for _, high in ends)
    texts = list(dict.fromkeys(f"{value:.4g}" for value in (least, greatest)))
    texts = ["0" if abs(float(text)) < SAME else text for text in texts]
    return "" if texts == ["1"] else f"{'..'.join(dict.fromkeys(texts))} "
