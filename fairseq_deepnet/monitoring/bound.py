"""The paper's bounds on the model update, for the weights that a model has (Theorems 4.2 and 4.3).

The theorems are about scalars: a sublayer has two weights v and w, an input of variance 1. Here v
and w are what a matrix does to the size of a random input, its gain over Xavier's initialisation,
rms(W) sqrt((fan_in + fan_out) / 2), which starts as beta. |theta*_i - theta_i| is the Frobenius
norm of the change of both matrices, which no direction of the input can exceed. The sum times
sqrt(C), the norm of a token after LayerNorm, is in the unit of |F(x, theta*) - F(x, theta)|. The
theorems hold up to a constant factor, and so does this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..anatomy import Branch, Stack
from ..schemes import Role, Side, Sublayer


@dataclass(frozen=True)
class Term:
    """A sublayer's part in the bound: its weights v and w, alpha, and |theta* - theta|."""

    v: float
    w: float
    alpha: float
    change: float


def stack_bound(terms: Sequence[Term]) -> float:
    """Return Theorem 4.2's: the sum of sqrt(v^2 + w^2) / alpha |theta* - theta| over sublayers."""
    return math.fsum(math.hypot(term.v, term.w) / term.alpha * term.change for term in terms)


def encoder_decoder_bound(
    encoder: Sequence[Term], decoder: Sequence[Term], crossings: Sequence[Term]
) -> float:
    """Return Theorem 4.3's: the encoder's bound reaches the decoder in each cross-attention.

    Args:
        encoder: its sublayers.
        decoder: all of its sublayers.
        crossings: those of them that are cross-attentions.
    """
    passed = math.fsum(term.v * term.w / term.alpha for term in crossings)
    return passed * stack_bound(encoder) + stack_bound(decoder)


def xavier_gain(norm: float, weight: Tensor) -> float:
    """Return the standard deviation over Xavier's of a weight [out, in] of this Frobenius norm."""
    return norm / math.sqrt(weight.numel()) * math.sqrt(sum(weight.shape) / 2)


def value_path(branch: Branch) -> tuple[Tensor, Tensor]:
    """Return the matrices that v and w stand for: v_proj and out_proj, or fc1 and fc2."""
    is_ffn = branch.sublayer is Sublayer.FFN
    first, second = (Role.FC1, Role.FC2) if is_ffn else (Role.V_PROJ, Role.OUT_PROJ)
    return branch.linears[first].weight, branch.linears[second].weight


def residual_weight(layer: nn.Module, sublayer: Sublayer) -> float:
    """Return alpha of LN(alpha x + G(x)); the mean of a learned vector (Admin's omega)."""
    residual: Any = layer.get_submodule(f"residuals.{sublayer.value}")
    alpha = getattr(residual, "alpha", None)
    if alpha is not None:
        return float(alpha)
    return float(torch.stack([w.float().mean() for w in residual.learned().values()]).mean())


class UpdateBound:
    """The bound for a model whose LayerNorms follow the residual sums."""

    def __init__(self, stacks: Sequence[Stack]) -> None:
        self.places = [
            (stack.side, layer.module, branch)
            for stack in stacks
            for layer in stack.layers
            for branch in layer.branches
        ]
        self.weights = [weight for *_, branch in self.places for weight in value_path(branch)]
        self.width = self.weights[-1].size(0)  # C: the last is fc2 [C, F] of the top layer

    @torch.no_grad()
    def measure(self, reference: Sequence[Tensor]) -> float:
        """Return the bound for the step from `reference`, one tensor a weight, to now."""
        norms = []
        for now, old in zip(self.weights, reference, strict=True):
            before = old.to(now.device).float()
            norms += [torch.linalg.vector_norm(before)]
            norms += [torch.linalg.vector_norm(now.detach().float() - before)]
        flat = torch.stack(norms).tolist()
        gains = [xavier_gain(norm, w) for norm, w in zip(flat[::2], self.weights, strict=True)]
        changes = flat[1::2]
        terms: dict[Side, list[Term]] = {Side.ENCODER: [], Side.DECODER: []}
        crossings = []
        for number, (side, layer, branch) in enumerate(self.places):
            v, w = 2 * number, 2 * number + 1
            alpha = residual_weight(layer, branch.sublayer)
            term = Term(gains[v], gains[w], alpha, math.hypot(changes[v], changes[w]))
            terms[side].append(term)
            if branch.sublayer is Sublayer.ENCODER_ATTN:
                crossings.append(term)
        if crossings:
            bound = encoder_decoder_bound(terms[Side.ENCODER], terms[Side.DECODER], crossings)
        else:
            bound = stack_bound([*terms[Side.ENCODER], *terms[Side.DECODER]])
        return math.sqrt(self.width) * bound
