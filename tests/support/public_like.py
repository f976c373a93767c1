"""Small models that behave as public code does under the name of DeepNorm, and a right one.

Only behaviour is rebuilt: constants, the place of LayerNorm, initial weights.
docs/reports/audit.md names the sources.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH: Final = 64
WORDS: Final = 90
Gain = Callable[[str], float]
"""Of a linear map, by the last part of its name."""


class LlamaAttention(nn.Module):
    """One head without positions."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(WIDTH, WIDTH, bias=False))

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, None]:
        maps = (self.q_proj, self.k_proj, self.v_proj)
        heads = F.scaled_dot_product_attention(*(m(hidden_states) for m in maps), is_causal=True)
        return self.o_proj(heads), None


class LlamaMLP(nn.Module):
    """A gated feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, 96, bias=False)
        self.up_proj = nn.Linear(WIDTH, 96, bias=False)
        self.down_proj = nn.Linear(96, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    """Post-LN: norm(alpha x + G(x)); Pre-LN: alpha x + G(scale norm(x))."""

    def __init__(self, place: str, alpha: float, scale: float) -> None:
        super().__init__()
        self.place, self.alpha, self.scale = place, alpha, scale
        self.self_attn, self.mlp = LlamaAttention(), LlamaMLP()
        self.post_attention_layernorm = nn.RMSNorm(WIDTH)
        if place == "post":
            self.post_feedforward_layernorm = nn.RMSNorm(WIDTH)
        else:
            self.input_layernorm = nn.RMSNorm(WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        if self.place == "post":
            x = self.post_attention_layernorm(self.alpha * x + self.self_attn(hidden_states=x)[0])
            return (self.post_feedforward_layernorm(self.alpha * x + self.mlp(x)),)
        h = self.scale * self.input_layernorm(x)
        x = self.alpha * x + self.self_attn(hidden_states=h)[0]
        h = self.scale * self.post_attention_layernorm(x)
        return (self.alpha * x + self.mlp(h),)


class LlamaLike(nn.Module):
    """A decoder with LLaMA's names."""

    def __init__(
        self,
        depth: int,
        gain: Gain,
        place: str = "post",
        alpha: float = 1.0,
        scaled: bool = False,
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
    """Start all linear maps: Xavier-normal, biases 0."""
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_normal_(part.weight, gain=gain(name.rpartition(".")[2]))
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def value_path(gain: float) -> Gain:
    """Gain 1 of queries and keys, `gain` of all other maps."""
    return lambda name: 1.0 if name in ("q_proj", "k_proj") else gain


TOKENS: Final = torch.arange(44).reshape(4, 11)
DEPTH: Final = 12


def right(depth: int = DEPTH) -> LlamaLike:
    """LLaMA's layers with the paper's DeepNorm for a decoder alone."""
    return LlamaLike(depth, value_path((8 * depth) ** -0.25), alpha=(2 * depth) ** 0.25)


def inverted_gain(alpha: float, depth: int = DEPTH) -> LlamaLike:
    """The exponent of beta without its sign, and one alpha for all depths."""
    return LlamaLike(depth, value_path((8 * depth) ** 0.25), alpha=alpha)
