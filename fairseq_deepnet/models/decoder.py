"""Decoder with fairseq's embeddings, output layer and interface around our layers.

Shapes: B = batch, T = target length, S = source length, C = channels, V = vocabulary, H = heads.
"""

from itertools import count
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerDecoderBase
from torch import Tensor, nn

from ..modules.decoding import Decoding
from ..modules.joined_projection import lay_out
from ..modules.layers import CausalLayer, DecoderLayer
from ..modules.positions import TargetMask, Unpadded, additive, key_mask, target_mask
from ..modules.stack import run_layers
from ..schemes import Place, ResidualScheme, Side
from .encoder import EncoderOut, SchemeStack, hypotheses_per_sentence
from .options import build_layer

DECODING_KEY = "deepnet.decoding"


class DeepNetDecoder(SchemeStack, TransformerDecoderBase):
    """Decoder of M layers with a residual scheme.

    Args:
        cfg: fairseq's TransformerConfig, with our options as additional attributes.
        dictionary: dictionary of the target language.
        embed_tokens: target embeddings.
        scheme: the residual scheme.
        no_encoder_attn: build a language model, without cross-attention.
    """

    side = Side.DECODER

    def __init__(
        self,
        cfg: Any,
        dictionary: Dictionary,
        embed_tokens: nn.Embedding,
        scheme: ResidualScheme,
        no_encoder_attn: bool = False,
    ) -> None:
        # These attributes come first because the base class calls build_decoder_layer.
        self.scheme = scheme
        self._next_layer = count()
        self.has_encoder_attn = not no_encoder_attn
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn)
        self.set_up(cfg, has_final_norm=not cfg.no_decoder_final_norm)
        self.compiles = bool(getattr(cfg, "compile", False))
        # Training needs attention weights only for supervised alignments.
        self.need_attn = bool(getattr(cfg, "load_alignments", False))

    def build_decoder_layer(self, cfg: Any, no_encoder_attn: bool = False) -> DecoderLayer:
        """Build the next layer; the first call builds the lowest layer."""
        place = Place(Side.DECODER, next(self._next_layer))
        kind = CausalLayer if no_encoder_attn else DecoderLayer
        return build_layer(kind, cfg, self.scheme, place)

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut | None = None,
        incremental_state: dict[str, Any] | None = None,
        features_only: bool = False,
        src_lengths: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, dict[str, list[Any]]]:
        """Return logits [B, T, V], or features [B, T, C], for prev_output_tokens [B, T].

        With `incremental_state`, return those of the newest position only, [B, 1, V] or [B, 1, C].
        `options` are passed to `extract_features`.
        """
        x, extra = self.extract_features(
            prev_output_tokens, encoder_out, incremental_state, **options
        )
        return x if features_only else self.output_layer(x), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut | None = None,
        incremental_state: dict[str, Any] | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
        return_all_hiddens: bool = False,
        self_mask: TargetMask | None = None,
    ) -> tuple[Tensor, dict[str, list[Any]]]:
        """Return the top layer's output [B, T, C], and "attn" [B, T, S] on request.

        Args:
            full_context_alignment: let every target position attend to all positions.
            alignment_layer: layer whose cross-attention is returned in "attn" (default: the top
                layer if `need_attn` is set).
            alignment_heads: number of heads whose attention is averaged (default: all).
            return_all_hiddens: return the states [T, B, C] in "inner_states", starting with the
                embeddings; ignored in incremental decoding.
            self_mask: result of `self.self_mask(prev_output_tokens)`, if already computed.
        """
        if (encoder_out is not None) != self.has_encoder_attn:
            needs = "needs the encoder's output" if self.has_encoder_attn else "has no encoder"
            raise ValueError(f"this decoder {needs}")
        if alignment_layer is None and self.need_attn:
            alignment_layer = self.num_layers - 1
        x = self.embed(prev_output_tokens, incremental_state)
        dtype = x.dtype
        x = self.to_stream(x)
        if incremental_state is None:
            if self_mask is None:
                self_mask = self.self_mask(prev_output_tokens, full_context_alignment)
            x, states, weights = self.run_all(
                x,
                encoder_out,
                self_mask,
                alignment_layer=alignment_layer,
                keep_states=return_all_hiddens,
            )
        else:
            decoding = self.decoding_of(incremental_state, x.size(0), encoder_out)
            x, weights = decoding.step(x, self.combination, alignment_layer)
            states = []
        x = self.to_output(x, dtype)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x, {
            "attn": [None if weights is None else weights[:, :alignment_heads].mean(dim=1).to(x)],
            "inner_states": [state.transpose(0, 1) for state in states],
        }

    def run_all(
        self,
        x: Tensor,
        encoder_out: EncoderOut | None,
        self_mask: TargetMask,
        alignment_layer: int | None,
        keep_states: bool,
    ) -> tuple[Tensor, list[Tensor], Tensor | None]:
        """Run all positions through the layers.

        Returns:
            the top layer's output [B, T, C], the states if requested, and the attention weights
            [B, H, T, S] of `alignment_layer`.
        """
        mask, causal, batch = self_mask
        mask = None if mask is None else additive(mask, self.embed_tokens.weight.dtype)
        source, source_mask = (None, None) if encoder_out is None else source_and_mask(encoder_out)
        source_batch = None
        alignment: list[Tensor] = []
        if keep_states or alignment_layer is not None:
            batch = None
        elif batch is not None and batch.packed and encoder_out is not None:
            if encoder_out["packed"]:
                source_batch = encoder_out["packed"][0]
                source = source_batch.take(source)
            else:  # the encoder ran without gradients
                batch = None

        def apply(layer: Any, h: Tensor) -> Tensor:
            aligned = layer.place.layer == alignment_layer
            h, weights = layer(h, source, mask, source_mask, causal, aligned, batch, source_batch)
            if weights is not None:
                alignment.append(weights)
            return h

        x, states = run_layers(
            self.layers,
            x if batch is None else batch.take(x),
            apply,
            self.checkpointing,
            self.combination,
            keep_states,
        )
        x = x if batch is None else batch.restore(x)
        return x, states, alignment[0] if alignment else None

    def self_mask(self, tokens: Tensor, full_context: bool = False) -> TargetMask:
        """Return the self-attention mask for tokens [B, T].

        This method waits for all work queued on a GPU, so call it before the encoder.
        """
        padding = tokens.eq(self.padding_idx)
        mask, causal = target_mask(padding, full_context)
        batch = None
        # Only padding on the right is removed, as a word may follow other padding.
        # Compiled layers would be recompiled for each number of rows.
        if torch.is_grad_enabled() and causal and not self.compiles:
            if self.packs(tokens):
                batch = Unpadded(padding, packed=True)
            else:
                batch = Unpadded.where_it_pays(padding, self.embed_dim)
        return TargetMask(mask, causal, batch)

    def decoding_of(
        self, incremental_state: dict[str, Any], rows: int, encoder_out: EncoderOut | None
    ) -> Decoding:
        """Return the `Decoding` stored in a generator's state, creating it in the first step.

        Args:
            rows: R, the number of hypotheses in the first step.
        """
        if DECODING_KEY not in incremental_state:
            source = padding = None
            group = 1  # without an encoder: fairseq announces only beams above 1
            if encoder_out is not None:
                group = hypotheses_per_sentence(encoder_out)
                source = encoder_out["encoder_out"][0].transpose(0, 1)
                padding = (encoder_out["encoder_padding_mask"] or [None])[0]
            group = group if rows % group == 0 else 1
            incremental_state[DECODING_KEY] = Decoding(self.layers, group, source, padding)
        return incremental_state[DECODING_KEY]

    def embed(self, tokens: Tensor, incremental_state: dict[str, Any] | None) -> Tensor:
        """Embed tokens [B, T] as [B, T, C]; in incremental decoding, only the newest, [B, 1, C]."""
        newest = tokens if incremental_state is None else tokens[:, -1:]
        x = self.embed_scale * self.embed_tokens(newest)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if self.embed_positions is not None:
            positions = self.embed_positions(tokens, incremental_state=incremental_state)
            x = x + positions[:, -x.size(1) :]
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout_module(x)

    def reorder_incremental_state(
        self, incremental_state: dict[str, Any], new_order: Tensor
    ) -> None:
        """Make row i continue row new_order[i]; see `DecodingCache.reorder`."""
        if DECODING_KEY in incremental_state:
            incremental_state[DECODING_KEY].reorder(new_order)

    # fairseq's version would visit every module, but the `Decoding` holds all layers' state
    reorder_incremental_state_scripting = reorder_incremental_state

    def make_generation_fast_(self, need_attn: bool | str | None = False, **kwargs: Any) -> None:
        """Prepare for generation, after training; `need_attn` requests weights for alignments."""
        self.need_attn = bool(need_attn)
        for layer in self.layers.children():
            lay_out(layer)


def source_and_mask(encoder_out: EncoderOut) -> tuple[Tensor, Tensor | None]:
    """Return the encoder's output [R, S, C] and additive mask [R, 1, 1, S] (None if unpadded)."""
    source, mask = encoder_out["encoder_out"][0].transpose(0, 1), None
    if encoder_out["encoder_padding_mask"]:
        mask = additive(key_mask(encoder_out["encoder_padding_mask"][0]), source.dtype)
    group = hypotheses_per_sentence(encoder_out)
    if group > 1:
        source = source.repeat_interleave(group, dim=0)
        mask = None if mask is None else mask.repeat_interleave(group, dim=0)
    return source, mask
