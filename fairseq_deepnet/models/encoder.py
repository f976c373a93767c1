"""The encoder: fairseq's embeddings and interface around our layers.

Shapes: B = batch, S = source length, C = channels.
"""

from itertools import count
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerEncoderBase
from fairseq.modules import LayerNorm
from torch import Tensor, nn

from ..modules import CompiledLayers, Dropout, EncoderLayer, call_layer, run_layers
from ..schemes import NormPlacement, Place, ResidualScheme, Side
from .learned_residuals import log_learned
from .options import build_layer, layer_shape
from .running_options import checkpointing_of

EncoderOut = dict[str, list[Any]]


class DeepNetEncoder(TransformerEncoderBase):
    """N layers joined as `scheme` says.

    Args:
        cfg: fairseq's TransformerConfig with our options on it.
        dictionary: of the source language.
        embed_tokens: source embeddings.
        scheme: how sublayers join and how weights start.
    """

    def __init__(
        self, cfg: Any, dictionary: Dictionary, embed_tokens: nn.Embedding, scheme: ResidualScheme
    ) -> None:
        # Plain attributes, which the base class's constructor needs through build_encoder_layer.
        self.scheme = scheme
        self._next_layer = count()
        super().__init__(cfg, dictionary, embed_tokens)
        self.dropout_module = Dropout(cfg.dropout, module_name="TransformerEncoder")
        self.checkpointing = checkpointing_of(
            cfg, Side.ENCODER, scheme, layer_shape(cfg, Side.ENCODER)
        )
        self.call_layer = CompiledLayers() if getattr(cfg, "compile", False) else call_layer
        self.log_interval = int(getattr(cfg, "log_interval", 0) or 0)
        self.combination = scheme.build_combination(Side.ENCODER, embed_tokens.embedding_dim)
        self.output_transform = scheme.build_output_transform(
            Side.ENCODER, embed_tokens.embedding_dim
        )
        self.layer_norm = (
            LayerNorm(embed_tokens.embedding_dim) if scheme.norm is NormPlacement.PRE else None
        )

    def build_encoder_layer(self, cfg: Any) -> EncoderLayer:
        """The next layer from the bottom."""
        place = Place(Side.ENCODER, next(self._next_layer))
        return build_layer(EncoderLayer, cfg, self.scheme, place)

    def forward_scriptable(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> EncoderOut:
        """Encode src_tokens [B, S]; fairseq's dictionary, with "encoder_out" [S, B, C]."""
        padding = src_tokens.eq(self.padding_idx)
        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        mask = None
        if padding.any():
            x = x.masked_fill(padding.unsqueeze(-1), 0)
            mask = ~padding[:, None, None, :]
        x, states = run_layers(
            self.layers,
            x,
            lambda layer, h: self.call_layer(layer, h, mask),
            self.checkpointing,
            self.combination,
            return_all_hiddens,
        )
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        if self.output_transform is not None:
            x = self.output_transform(x)
        lengths = src_tokens.ne(self.padding_idx).sum(dim=1, dtype=torch.int32)
        return {
            "encoder_out": [x.transpose(0, 1)],
            "encoder_padding_mask": [padding],
            "encoder_embedding": [embedding],
            "encoder_states": [state.transpose(0, 1) for state in states],
            "fc_results": [],
            "src_tokens": [],
            "src_lengths": [lengths.unsqueeze(1)],
        }

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """Rows in a new order [R]; notes where sentences stand repeated for their hypotheses.

        Such a note saves copies: hypotheses that change places within their sentences change
        nothing.
        """
        rows = encoder_out["encoder_out"][0].size(1)
        each = torch.arange(rows, device=new_order.device)
        group = encoder_out.get("hypotheses_per_sentence", [1])[0]
        if group > 1 and torch.equal(new_order // group, each // group):
            return encoder_out
        reordered: EncoderOut = super().reorder_encoder_out(encoder_out, new_order)
        repeats, rest = divmod(new_order.numel(), rows)
        if repeats > 1 and rest == 0 and torch.equal(new_order, each.repeat_interleave(repeats)):
            reordered["hypotheses_per_sentence"] = [repeats * group]
        elif group > 1 and stand_together(new_order, group):
            reordered["hypotheses_per_sentence"] = [group]
        return reordered

    def set_num_updates(self, num_updates: int) -> None:
        """fairseq's word before each micro-batch: the updates that are finished."""
        if self.training:
            log_learned(self, Side.ENCODER, num_updates, self.log_interval)

    def upgrade_state_dict_named(
        self, state_dict: dict[str, Tensor], name: str
    ) -> dict[str, Tensor]:
        """Nothing to upgrade: our parameters have had fairseq's present names from the start."""
        return state_dict


def stand_together(rows: Tensor, group: int) -> bool:
    """Whether each `group` rows [R] come from the same sentence, which had as many."""
    if rows.numel() % group:
        return False
    sentences = (rows // group).view(-1, group)
    return bool((sentences == sentences[:, :1]).all())
