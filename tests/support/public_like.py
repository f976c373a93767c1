"""Small models that behave like public DeepNorm implementations, and a correct one.

Only their behaviour is rebuilt: constants, the position of LayerNorm, and initial weights.
docs/reports/audit.md lists the sources.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH: Final = 64
FFN: Final = 96
WORDS: Final = 90
DEPTH: Final = 12
TOKENS: Final = torch.arange(44).reshape(4, 11)
Gain = Callable[[str], float]
"""Gain of a linear map, by the last part of its name."""


class LlamaAttention(nn.Module):
    """Attention with one head and without positions."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(WIDTH, WIDTH, bias=False))

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, None]:
        maps = (self.q_proj, self.k_proj, self.v_proj)
        heads = F.scaled_dot_product_attention(*(m(hidden_states) for m in maps), is_causal=True)
        return self.o_proj(heads), None


class LlamaMLP(nn.Module):
    """Gated feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, FFN, bias=False)
        self.up_proj = nn.Linear(WIDTH, FFN, bias=False)
        self.down_proj = nn.Linear(FFN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    """Post-LN layer, norm(alpha x + G(x)), or Pre-LN layer, alpha x + G(scale norm(x))."""

    def __init__(self, place: str, alpha: float, scale: float) -> None:
        super().__init__()
        self.place, self.alpha, self.scale = place, alpha, scale
        self.self_attn, self.mlp = LlamaAttention(), LlamaMLP()
        self.first_norm, self.second_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        if self.place == "post":
            x = self.first_norm(self.alpha * x + self.self_attn(hidden_states=x)[0])
            return (self.second_norm(self.alpha * x + self.mlp(x)),)
        if self.place == "inside":  # a ReZero that normalises its branch, as initialised
            x = x + 0 * self.first_norm(self.self_attn(hidden_states=x)[0])
            return (x + 0 * self.second_norm(self.mlp(x)),)
        h = self.scale * self.first_norm(x)
        x = self.alpha * x + self.self_attn(hidden_states=h)[0]
        return (self.alpha * x + self.mlp(self.scale * self.second_norm(x)),)


class LlamaLike(nn.Module):
    """Decoder with LLaMA's names."""

    def __init__(
        self, depth: int, gain: Gain, place: str = "post", alpha: float = 1.0, scaled: bool = False
    ) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.embed_tokens = nn.Embedding(WORDS, WIDTH)
        scales = [(number + 1) ** -0.5 if scaled else 1.0 for number in range(depth)]
        self.layers = nn.ModuleList(LlamaLayer(place, alpha, scale) for scale in scales)
        self.norm = nn.RMSNorm(WIDTH)
        draw(self.layers, gain)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            (x,) = layer(x)
        return self.norm(x)


def draw(module: nn.Module, gain: Gain) -> None:
    """Initialise all linear maps: Xavier-normal weights, zero biases."""
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_normal_(part.weight, gain=gain(name.rpartition(".")[2]))
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def value_path(gain: float) -> Gain:
    """Return gains of 1 for queries and keys, and `gain` for all other maps."""
    return lambda name: 1.0 if name in ("q_proj", "k_proj") else gain


def correct(depth: int = DEPTH) -> LlamaLike:
    """Build LLaMA's layers with the paper's DeepNorm for a single decoder."""
    return LlamaLike(depth, value_path((8 * depth) ** -0.25), alpha=(2 * depth) ** 0.25)


def inverted_gain(alpha: float, depth: int = DEPTH) -> LlamaLike:
    """Invert the sign of beta's exponent, and use one alpha for all depths."""
    return LlamaLike(depth, value_path((8 * depth) ** 0.25), alpha=alpha)
