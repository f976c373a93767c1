"""Encoder and decoder layers: attention and feed-forward with a scheme's residual connections.

Shapes: B = batch, T = target length, S = source length, C = channels, F = feed-forward width,
H = heads. The batch dimension comes first. A layer's input and output have C channels per stream.
Parameter names are fairseq's, so checkpoints are interchangeable.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from fairseq import utils
from torch import Tensor, nn

from ..anatomy import find_branches
from ..schemes import LayerNorm, NormPlacement, Place, Residual, ResidualScheme, Stream, Sublayer
from .attention import MultiheadAttention
from .dropout import Dropout
from .positions import Unpadded


@dataclass(frozen=True)
class LayerShape:
    """Sizes and dropout probabilities of one layer.

    Args:
        embed_dim: C. ffn_dim: F. heads: H.
        source_dim: channels of the encoder's output, for cross-attention.
        dropout, attention_dropout, activation_dropout: dropout probabilities in training.
        activation: fairseq's name for the activation function.
    """

    embed_dim: int
    ffn_dim: int
    heads: int
    source_dim: int
    dropout: float
    attention_dropout: float
    activation_dropout: float
    activation: str


RECOMPILATIONS = 64  # maximum for all stacks; beyond it (8 in torch), code runs uncompiled


@functools.cache
def compile_layers() -> Callable[..., Any]:
    """Return a compiled function that calls a layer's `compute`.

    Parameters are inputs of the compiled code and sizes are dynamic, so all layers of a stack share
    the compiled code. torch recompiles it only for calls with or without a mask and for sizes of 1.
    """
    from torch._dynamo import config as limits  # takes a second to import

    limits.recompile_limit = max(limits.recompile_limit, RECOMPILATIONS)
    return torch.compile(_compute, dynamic=True)


def _compute(layer: "TransformerLayer", *args: Any, **kwargs: Any) -> Any:
    return layer.compute(*args, **kwargs)


class TransformerLayer(nn.Module):
    """Base class of all layers, with the feed-forward branch, residuals and initialisation.

    Attributes:
        compiled: result of `compile_layers`, or None. This function runs inside the layer's own
            hooks, which gather sharded parameters. It is used only in training, and not while parts
            of the layer have hooks (for monitoring), because compiled code would skip the hooks.
    """

    compiled: Callable[..., Any] | None = None
    sublayers: tuple[Sublayer, ...]
    stock_name: str  # fairseq's name of the layer, for --retain-dropout-modules
    self_attn: MultiheadAttention
    self_attn_layer_norm: nn.Module | None

    def __init__(self, shape: LayerShape, scheme: ResidualScheme, place: Place) -> None:
        super().__init__()
        self.place = place
        name = self.stock_name
        self.dropout_module = Dropout(shape.dropout, module_name=name)
        self.activation_dropout_module = Dropout(shape.activation_dropout, module_name=name)
        self.activation_fn = utils.get_activation_fn(shape.activation)
        for sublayer in self.attentions:
            self.add_attention(sublayer, shape, scheme)
        self.fc1 = nn.Linear(shape.embed_dim, shape.ffn_dim, bias=scheme.bias)
        self.fc2 = nn.Linear(shape.ffn_dim, shape.embed_dim, bias=scheme.bias)
        self.final_layer_norm = self.build_norm(shape, scheme)
        before, after = scheme.build_ffn_transforms(shape.ffn_dim)
        self.pre_activation_transform = before
        self.post_activation_transform = after
        residuals = scheme.build_residuals(place, self.sublayers, shape.embed_dim)
        self.residuals = nn.ModuleDict(
            {sublayer.value: residual for sublayer, residual in residuals.items()}
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return `compute(*args, **kwargs)`, compiled if possible."""
        if self.compiled is None or not self.training or self.has_hooks():
            return self.compute(*args, **kwargs)
        return self.compiled(self, *args, **kwargs)

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the layer's output."""
        raise NotImplementedError

    def has_hooks(self) -> bool:
        """Return True if a part of the layer has a forward hook."""
        parts = (part for part in self.modules() if part is not self)
        return any(part._forward_hooks or part._forward_pre_hooks for part in parts)

    def add_attention(self, sublayer: Sublayer, shape: LayerShape, scheme: ResidualScheme) -> None:
        source_dim = shape.source_dim if sublayer is Sublayer.ENCODER_ATTN else shape.embed_dim
        attention = MultiheadAttention(
            shape.embed_dim,
            shape.heads,
            source_dim=source_dim,
            dropout=shape.attention_dropout,
            bias=scheme.bias,
            head_transform=scheme.build_head_transform(sublayer, shape.heads, shape.embed_dim),
        )
        self.add_module(sublayer.value, attention)
        self.add_module(f"{sublayer.value}_layer_norm", self.build_norm(shape, scheme))

    @staticmethod
    def build_norm(shape: LayerShape, scheme: ResidualScheme) -> nn.Module | None:
        return None if scheme.norm is NormPlacement.NONE else LayerNorm(shape.embed_dim)

    @property
    def attentions(self) -> tuple[Sublayer, ...]:
        """Attention sublayers, which precede the feed-forward sublayer."""
        return tuple(sublayer for sublayer in self.sublayers if sublayer is not Sublayer.FFN)

    def norm(self, sublayer: Sublayer) -> nn.Module | None:
        """Return a sublayer's LayerNorm; None if the scheme has no LayerNorms."""
        if sublayer is Sublayer.FFN:
            return self.final_layer_norm
        return getattr(self, f"{sublayer.value}_layer_norm")

    def residual(self, sublayer: Sublayer) -> Residual:
        """Return a sublayer's residual connection."""
        return cast(Residual, self.residuals[sublayer])

    def enter(self, sublayer: Sublayer, x: Stream) -> Tensor:
        """Return a branch's input [B, T, C], in the dtype of the weights."""
        entry = self.residual(sublayer).enter(x, self.norm(sublayer))
        return entry.to(self.fc1.weight.dtype)

    def leave(self, sublayer: Sublayer, x: Stream, branch: Tensor) -> Stream:
        """Return the stream after a sublayer, in the dtype of x, the stream before the sublayer."""
        dtype = (x if isinstance(x, Tensor) else x[0]).dtype
        return self.residual(sublayer).leave(
            x, branch, self.norm(sublayer), lambda output: self.dropout_module(output).to(dtype)
        )

    def initialise(self, scheme: ResidualScheme) -> None:
        """Initialise every linear map as the scheme defines."""
        for branch in find_branches(self):
            for role, linear in branch.linears.items():
                scheme.initialise(self.place, branch.sublayer, role, linear)

    def self_attention(
        self, x: Tensor, mask: Tensor | None, causal: bool = False, batch: Unpadded | None = None
    ) -> Stream:
        """Return the stream after the self-attention sublayer; x is the stream before it."""
        h = self.enter(Sublayer.SELF_ATTN, x)
        key, value = self.self_attn.project(h, batch)
        branch = self.self_attn(h, key, value, mask, causal, batch)
        return self.leave(Sublayer.SELF_ATTN, x, branch)

    def feed_forward(self, x: Stream) -> Tensor:
        """Return the layer's output; x is the stream before the feed-forward sublayer."""
        h = self.fc1(self.enter(Sublayer.FFN, x))
        if self.pre_activation_transform is not None:
            h = self.pre_activation_transform(h)
        h = self.activation_dropout_module(self.activation_fn(h))
        if self.post_activation_transform is not None:
            h = self.post_activation_transform(h)
        return self.leave(Sublayer.FFN, x, self.fc2(h))


class EncoderLayer(TransformerLayer):
    """Self-attention, then feed-forward."""

    sublayers = (Sublayer.SELF_ATTN, Sublayer.FFN)
    stock_name = "TransformerEncoderLayer"

    def compute(  # type: ignore[override]
        self, x: Tensor, mask: Tensor | None = None, batch: Unpadded | None = None
    ) -> Tensor:
        """Return the output, shaped like x.

        Args:
            x: [B, S, C].
            mask: additive, [B, 1, 1, S].
            batch: if given, x contains only the real positions of this batch, [n, C].
        """
        return self.feed_forward(self.self_attention(x, mask, batch=batch))


class DecoderLayer(TransformerLayer):
    """Self-attention, cross-attention (unless `source` is None), then feed-forward."""

    sublayers: tuple[Sublayer, ...] = (Sublayer.SELF_ATTN, Sublayer.ENCODER_ATTN, Sublayer.FFN)
    stock_name = "TransformerDecoderLayer"
    encoder_attn: MultiheadAttention
    encoder_attn_layer_norm: nn.Module | None

    def compute(  # type: ignore[override]
        self,
        x: Tensor,
        source: Tensor | None = None,
        self_mask: Tensor | None = None,
        source_mask: Tensor | None = None,
        causal: bool = False,
        need_weights: bool = False,
        batch: Unpadded | None = None,
        source_batch: Unpadded | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output, shaped like x, and attention weights [B, H, T, S] or None.

        Args:
            x: [B, T, C].
            source: the encoder's output [B, S, C']; None in a decoder-only model.
            self_mask: additive, [B, 1, T, T]; must be None if `causal` is True.
            source_mask: additive, [B, 1, 1, S].
            need_weights: return the cross-attention's weights; must be False if `batch` is given.
            batch: if given, x contains only the real positions of this batch, [n, C].
            source_batch: if given, `source` contains only real positions; `batch` must be packed.
        """
        x, weights = self.self_attention(x, self_mask, causal, batch), None
        if source is not None:
            x, weights = self.cross_attention(
                x, source, source_mask, need_weights, batch, source_batch
            )
        return self.feed_forward(x), weights

    def cross_attention(
        self,
        x: Stream,
        source: Tensor,
        mask: Tensor | None,
        need_weights: bool,
        batch: Unpadded | None,
        source_batch: Unpadded | None,
    ) -> tuple[Stream, Tensor | None]:
        h = self.enter(Sublayer.ENCODER_ATTN, x)
        key, value = self.encoder_attn.project(source, source_batch)
        branch = self.encoder_attn(h, key, value, mask, batch=batch, source_batch=source_batch)
        weights = self.encoder_attn.weights(h, key, mask) if need_weights else None
        return self.leave(Sublayer.ENCODER_ATTN, x, branch), weights


class CausalLayer(DecoderLayer):
    """Layer of a decoder-only model: self-attention, then feed-forward."""

    sublayers = (Sublayer.SELF_ATTN, Sublayer.FFN)
