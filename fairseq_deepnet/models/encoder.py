"""Encoder with fairseq's embeddings and interface around our layers.

Shapes: B = batch, S = source length, C = channels.
"""

from itertools import count
from typing import Any, ClassVar

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerEncoderBase
from torch import Tensor, nn

from ..modules.dropout import Dropout
from ..modules.joined_projection import lay_out
from ..modules.layers import EncoderLayer
from ..modules.positions import Unpadded, additive, key_mask
from ..modules.stack import run_layers
from ..schemes import LayerNorm, NormPlacement, Place, ResidualScheme, Side
from .options import build_layer, layer_shape
from .running_options import checkpointing_of, streams_in_fp32
from .scheme_options import log_learned

EncoderOut = dict[str, list[Any]]


class SchemeStack:
    """Mixin for our encoder and decoder that holds the parts of a scheme outside the layers."""

    side: ClassVar[Side]
    scheme: ResidualScheme
    training: bool
    layernorm_embedding: nn.Module | None
    layer_norm: nn.Module | None

    def set_up(self, cfg: Any, has_final_norm: bool = True) -> None:
        """Build the modules outside the layers and read our options.

        Args:
            cfg: fairseq's TransformerConfig, with our options as additional attributes.
            has_final_norm: build a final LayerNorm if the scheme is Pre-LN.
        """
        shape = layer_shape(cfg, self.side)
        self.dropout_module = Dropout(cfg.dropout, module_name=f"Transformer{self.side.title()}")
        self.checkpointing = checkpointing_of(cfg, self.side, self.scheme, shape)
        self.streams_in_fp32 = streams_in_fp32(cfg, self.scheme)
        self.varlen = bool(getattr(cfg, "varlen_attention", False))
        self.log_interval = int(getattr(cfg, "log_interval", 0) or 0)
        self.combination = self.scheme.build_combination(self.side, shape.embed_dim)
        self.output_transform = self.scheme.build_output_transform(self.side, shape.embed_dim)
        # torch's LayerNorms; fairseq would use apex's if installed
        if cfg.layernorm_embedding:
            self.layernorm_embedding = nn.LayerNorm(shape.embed_dim)
        has_norm = self.scheme.norm is NormPlacement.PRE and has_final_norm
        self.layer_norm = LayerNorm(shape.embed_dim) if has_norm else None

    def packs(self, tokens: Tensor) -> bool:
        """Return True if all operations on `tokens`, including attention, run without padding."""
        return self.varlen and tokens.is_cuda and torch.is_grad_enabled()

    def to_stream(self, x: Tensor) -> Tensor:
        """Return embeddings in the dtype of the residual stream."""
        return x.to(torch.promote_types(x.dtype, torch.float32)) if self.streams_in_fp32 else x

    def to_output(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Apply the modules after the top layer and return the result in `dtype`."""
        for module in (self.layer_norm, self.output_transform):
            x = x if module is None else module(x)
        return x.to(dtype)

    def set_num_updates(self, num_updates: int) -> None:
        """Log the scheme's learned values; fairseq passes the number of completed updates."""
        if self.training:
            log_learned(self, num_updates)


class DeepNetEncoder(SchemeStack, TransformerEncoderBase):
    """Encoder of N layers with a residual scheme; `cfg` is that of `SchemeStack.set_up`."""

    side = Side.ENCODER

    def __init__(
        self, cfg: Any, dictionary: Dictionary, embed_tokens: nn.Embedding, scheme: ResidualScheme
    ) -> None:
        # These attributes come first because the base class calls build_encoder_layer.
        self.scheme = scheme
        self._next_layer = count()
        super().__init__(cfg, dictionary, embed_tokens)
        self.set_up(cfg)
        self.generates = False  # True after make_generation_fast_

    def build_encoder_layer(self, cfg: Any) -> EncoderLayer:
        """Build the next layer; the first call builds the lowest layer."""
        place = Place(Side.ENCODER, next(self._next_layer))
        return build_layer(EncoderLayer, cfg, self.scheme, place)

    def forward_scriptable(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> EncoderOut:
        """Encode src_tokens [B, S]; return a dict in fairseq's format: "encoder_out" [S, B, C], ...

        Without padding, "encoder_padding_mask" is [], so the decoder need not check for padding.
        If the layers ran on a packed batch, "packed" contains it.
        """
        padded = src_tokens.eq(self.padding_idx)
        # This check comes first because it waits for everything queued on a GPU.
        padding = padded if padded.any() else None
        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        dtype = x.dtype
        mask = None if padding is None else additive(key_mask(padding), dtype)
        x = self.to_stream(x)
        batch = None
        if self.packs(src_tokens) and not return_all_hiddens:
            batch, mask = Unpadded(padded, packed=True), None
        elif padding is not None and self.generates and not return_all_hiddens:
            # Generation sorts by words; padding depends on subwords and can fill a third of a batch
            batch = Unpadded(padding)
        if batch is not None:
            x = batch.take(x)
        elif padding is not None:
            x = x.masked_fill(padding.unsqueeze(-1), 0)
        x, states = run_layers(
            self.layers,
            x,
            lambda layer, h: layer(h, mask, batch),
            self.checkpointing,
            self.combination,
            return_all_hiddens,
        )
        x = self.to_output(x if batch is None else batch.restore(x), dtype)
        lengths = src_tokens.ne(self.padding_idx).sum(dim=1, dtype=torch.int32)
        return {
            "encoder_out": [x.transpose(0, 1)],
            "encoder_padding_mask": [] if padding is None else [padding],
            "encoder_embedding": [embedding],
            "encoder_states": [state.transpose(0, 1) for state in states],
            "fc_results": [],
            "src_tokens": [],
            "src_lengths": [lengths.unsqueeze(1)],
            "packed": [batch] if batch is not None and batch.packed else [],
        }

    def make_generation_fast_(self, **kwargs: Any) -> None:
        """Prepare the encoder for generation, after training."""
        self.generates = True
        for layer in self.layers.children():
            lay_out(layer)

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """Reorder the encoder's output: row i becomes the old row new_order[i]; new_order is [R].

        If sentences have several hypotheses, each sentence is stored once, with the number of its
        hypotheses. Reordering the hypotheses within each sentence then leaves the output unchanged.
        """
        sentences = encoder_out["encoder_out"][0].size(1)
        each = torch.arange(sentences, device=new_order.device)
        group = hypotheses_per_sentence(encoder_out)
        if group == 1:
            repeats = new_order.numel() // sentences
            if repeats > 1 and torch.equal(new_order, each.repeat_interleave(repeats)):
                return encoder_out | {"hypotheses_per_sentence": [repeats]}
        sentence = torch.div(new_order, group, rounding_mode="floor")
        note = {}
        is_divisible = group > 1 and sentence.numel() % group == 0
        if is_divisible and not sentence.view(-1, group).diff().any():
            sentence, note = sentence[::group], {"hypotheses_per_sentence": [group]}
            if torch.equal(sentence, each):
                return encoder_out
        return super().reorder_encoder_out(encoder_out, sentence) | note

    def upgrade_state_dict_named(
        self, state_dict: dict[str, Tensor], name: str
    ) -> dict[str, Tensor]:
        """Return `state_dict` unchanged: our parameters have always had fairseq's current names."""
        return state_dict


def hypotheses_per_sentence(encoder_out: EncoderOut) -> int:
    """Return the number of hypotheses for each sentence in the encoder's output."""
    return int(encoder_out.get("hypotheses_per_sentence", [1])[0])
