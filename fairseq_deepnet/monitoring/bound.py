"""The paper's bounds on the model update for a model's actual weights (Theorems 4.2 and 4.3).

The theorems treat scalars: a sublayer has two weights v and w, and an input of variance 1. Here v
and w are the gains of matrices on the size of a random input, relative to Xavier's initialisation:
rms(W) sqrt((fan_in + fan_out) / 2), which is beta initially. |theta*_i - theta_i| is the Frobenius
norm of the change of both matrices, an upper limit for any direction of the input. The sum is
multiplied by sqrt(C), the norm of a token after LayerNorm, and so has the unit of |F(x, theta*) -
F(x, theta)|. Like the theorems, the result holds up to a constant factor.
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
    """Contribution of a sublayer: its weights v and w, alpha, and |theta* - theta|."""

    v: float
    w: float
    alpha: float
    change: float


def stack_bound(terms: Sequence[Term]) -> float:
    """Return the bound of Theorem 4.2: the sum of sqrt(v^2 + w^2) / alpha |theta* - theta|."""
    return math.fsum(math.hypot(term.v, term.w) / term.alpha * term.change for term in terms)


def encoder_decoder_bound(
    encoder: Sequence[Term], decoder: Sequence[Term], crossings: Sequence[Term]
) -> float:
    """Return the bound of Theorem 4.3: each cross-attention adds the encoder's bound.

    Args:
        encoder: sublayers of the encoder.
        decoder: all sublayers of the decoder.
        crossings: cross-attentions among them.
    """
    passed = math.fsum(term.v * term.w / term.alpha for term in crossings)
    return passed * stack_bound(encoder) + stack_bound(decoder)


def xavier_gain(norm: float, weight: Tensor) -> float:
    """Return the gain over Xavier's of a weight [out, in] with this Frobenius norm."""
    return norm / math.sqrt(weight.numel()) * math.sqrt(sum(weight.shape) / 2)


def value_path(branch: Branch) -> tuple[Tensor, Tensor]:
    """Return the matrices for v and w: v_proj and out_proj, or fc1 and fc2."""
    is_ffn = branch.sublayer is Sublayer.FFN
    first, second = (Role.FC1, Role.FC2) if is_ffn else (Role.V_PROJ, Role.OUT_PROJ)
    return branch.linears[first].weight, branch.linears[second].weight


def residual_weight(layer: nn.Module, sublayer: Sublayer) -> float:
    """Return alpha of LN(alpha x + G(x)), or the mean of a learned vector (Admin's omega)."""
    residual: Any = layer.get_submodule(f"residuals.{sublayer.value}")
    alpha = getattr(residual, "alpha", None)
    if alpha is not None:
        return float(alpha)
    return float(torch.stack([w.float().mean() for w in residual.learned().values()]).mean())


class UpdateBound:
    """Bound for a model with LayerNorms after the residual sums."""

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
    def measure(self, initial: Sequence[Tensor]) -> float:
        """Return the bound for the step from the initial weights to the current ones."""
        norms = []
        for weight, start in zip(self.weights, initial, strict=True):
            before = start.to(weight.device).float()
            change = torch.linalg.vector_norm(weight.detach().float() - before)
            norms.append(torch.stack([torch.linalg.vector_norm(before), change]))
        numbers = torch.stack(norms).tolist()
        gains = [xavier_gain(n, w) for (n, _), w in zip(numbers, self.weights, strict=True)]
        terms: dict[Side, list[Term]] = {Side.ENCODER: [], Side.DECODER: []}
        crossings = []
        for number, (side, layer, branch) in enumerate(self.places):
            v, w = 2 * number, 2 * number + 1
            alpha = residual_weight(layer, branch.sublayer)
            term = Term(gains[v], gains[w], alpha, math.hypot(numbers[v][1], numbers[w][1]))
            terms[side].append(term)
            if branch.sublayer is Sublayer.ENCODER_ATTN:
                crossings.append(term)
        if crossings:
            bound = encoder_decoder_bound(terms[Side.ENCODER], terms[Side.DECODER], crossings)
        else:
            bound = stack_bound([*terms[Side.ENCODER], *terms[Side.DECODER]])
        return math.sqrt(self.width) * bound
