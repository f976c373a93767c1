"""A small encoder-decoder with torchscale's names and habits, to test what finds its parts.

Layers are called with keywords and give tuples, fc1 and fc2 stand in `ffn` and see [B T, C], alpha
is an attribute, and LayerNorm's place a switch of its own. The real package is checked by
benchmarks/check_torchscale.py.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_deepnet.schemes import Side, gains


class Attention(nn.Module):
    """One head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        for role in ("k_proj", "v_proj", "q_proj", "out_proj"):
            setattr(self, role, nn.Linear(width, width))

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, None]:
        heads = F.scaled_dot_product_attention(
            self.q_proj(query), self.k_proj(key), self.v_proj(value)
        )
        return self.out_proj(heads), None


class FeedForward(nn.Module):
    """fc1 and fc2 on flat tokens."""

    def __init__(self, width: int, ffn: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, ffn), nn.Linear(ffn, width)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.size(-1))
        return self.fc2(F.relu(self.fc1(flat))).view(x.shape)


class Layer(nn.Module):
    """An encoder layer, or with `crossed` a decoder layer."""

    def __init__(self, width: int, alpha: float, crossed: bool, pre: bool) -> None:
        super().__init__()
        self.alpha, self.normalize_before = alpha, pre
        self.self_attn, self.self_attn_layer_norm = Attention(width), nn.LayerNorm(width)
        self.encoder_attn = Attention(width) if crossed else None
        self.encoder_attn_layer_norm = nn.LayerNorm(width) if crossed else None
        self.ffn, self.final_layer_norm = FeedForward(width, 2 * width), nn.LayerNorm(width)

    def forward(self, x: Tensor, encoder_out: Tensor | None = None) -> tuple[Tensor, None]:
        x = self.join(x, self.self_attn_layer_norm, lambda h: self.attend(self.self_attn, h, h))
        if self.encoder_attn is not None:
            x = self.join(
                x,
                self.encoder_attn_layer_norm,
                lambda h: self.attend(self.encoder_attn, h, encoder_out),
            )
        return self.join(x, self.final_layer_norm, self.ffn), None

    @staticmethod
    def attend(attention: Any, query: Tensor, key: Tensor | None) -> Tensor:
        return attention(query=query, key=key, value=key)[0]

    def join(self, x: Tensor, norm: Any, branch: Any) -> Tensor:
        h = norm(x) if self.normalize_before else x
        x = x * self.alpha + branch(h)
        return x if self.normalize_before else norm(x)


class Stack(nn.Module):
    """Embeddings and layers; the decoder's output is mapped to the vocabulary."""

    def __init__(self, layers: list[Layer], width: int, vocabulary: int, projected: bool) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width, padding_idx=1)
        self.layers = nn.ModuleList(layers)
        self.layer_norm = nn.LayerNorm(width) if layers[0].normalize_before else None
        self.output_projection = nn.Linear(width, vocabulary, bias=False) if projected else None
        for end in (self.embed_tokens, self.output_projection):
            if end is not None:
                nn.init.normal_(end.weight, std=width**-0.5)
        nn.init.zeros_(self.embed_tokens.weight[1])

    def forward(self, tokens: Tensor, encoder_out: Tensor | None = None) -> dict[str, Tensor]:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x, _ = layer(x, encoder_out=encoder_out)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return {"out": x if self.output_projection is None else self.output_projection(x)}


class EncoderDecoder(nn.Module):
    """DeepNorm with the paper's weights, or as nn.Linear starts them (`plain`)."""

    def __init__(self, n: int, m: int, width: int = 64, pre: bool = False, plain: bool = False):
        super().__init__()
        torch.manual_seed(3)
        pairs = gains(n, m)
        stacks = []
        for side, depth in ((Side.ENCODER, n), (Side.DECODER, m)):
            crossed = side is Side.DECODER
            layers = [Layer(width, pairs[side].alpha, crossed, pre) for _ in range(depth)]
            stack = Stack(layers, width, 80, crossed)
            for name, module in stack.layers.named_modules():
                if isinstance(module, nn.Linear) and not plain:
                    scaled = name.rpartition(".")[2] not in ("q_proj", "k_proj")
                    nn.init.xavier_normal_(module.weight, gain=pairs[side].beta if scaled else 1)
                    nn.init.zeros_(module.bias)
            stacks.append(stack)
        self.encoder, self.decoder = stacks

    def forward(self, src_tokens: Tensor, prev_output_tokens: Tensor) -> tuple[Tensor, None]:
        source = self.encoder(src_tokens)["out"]
        return self.decoder(prev_output_tokens, source)["out"], None
