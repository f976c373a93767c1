"""Folding of a residual scheme's factors into the weights of stock layers.

Post-LN with a weighted residual, LN(w * x + G(x)), becomes LN(x' + G'(x')) in one of two ways:

- If w is a number, LN(w x + G) = LN(x + G / w), as LayerNorm is invariant to its input's scale.
  The branch's last linear map is divided by w. Exact equality would need eps / w^2 instead of eps.
- If w is a vector [C], it cannot pass through LayerNorm, which mixes channels. Instead, x' = w * x
  is produced by the preceding LayerNorm, whose gain and bias are multiplied by w, or by the scaled
  embeddings. The columns of the branch's maps that read x are divided by w. This way is exact.

The first way changes only one layer, so layers of the folded model can still be dropped.
docs/reports/export.md describes the result for each scheme.
"""

import re
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor

from fairseq_deepnet.schemes import (
    SCHEMES,
    Depths,
    NormPlacement,
    Place,
    ResidualScheme,
    Side,
    Sublayer,
)

PADDING: Final = 1
"""fairseq's index of <pad>. The position of a sentence's first word is the next number."""
FIRST_POSITION: Final = PADDING + 1
"""Row of a position table for a sentence's first word."""
_LAYER: Final = re.compile(r"((?:.*\.)?(encoder|decoder)\.(?:.*\.)?)layers\.(\d+)\.")
_ENTRY: Final = {
    Sublayer.SELF_ATTN: ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    Sublayer.ENCODER_ATTN: ("encoder_attn.q_proj",),  # keys and values read the encoder
    Sublayer.FFN: ("fc1",),
}
_EXIT: Final = {
    Sublayer.SELF_ATTN: "self_attn.out_proj",
    Sublayer.ENCODER_ATTN: "encoder_attn.out_proj",
    Sublayer.FFN: "fc2",
}
_NORM: Final = {
    Sublayer.SELF_ATTN: "self_attn_layer_norm",
    Sublayer.ENCODER_ATTN: "encoder_attn_layer_norm",
    Sublayer.FFN: "final_layer_norm",
}
_SMALLEST: Final = 1e-6


@dataclass
class Folded:
    """A model that stock layers can compute.

    Args:
        weights: state dict. Changed tensors are float32; others keep their dtype.
        options: model options that differ from those in training.
    """

    weights: dict[str, Tensor]
    options: dict[str, Any] = field(default_factory=dict)

    def scale(self, *names: str, by: Tensor | float) -> None:
        """Multiply parameters by a factor. Parameters that were tied to them do not change."""
        for name in names:
            self.weights[name] = self.weights[name].float() * by


@dataclass(frozen=True)
class _Stack:
    """The parameters of one side's layers.

    Args:
        prefix: beginning of the side's parameter names, before "layers." or "embed_tokens".
        layers: parameters of each layer, by their names within the layer.
    """

    side: Side
    prefix: str
    layers: list[dict[str, Tensor]] = field(default_factory=list)

    def at(self, layer: int) -> str:
        """Return the prefix of a layer's parameter names."""
        return f"{self.prefix}layers.{layer}."


def foldable() -> list[str]:
    """Return the names of the schemes that stock layers of an encoder-decoder can compute."""
    return [name for name, kind in SCHEMES.items() if kind(Depths(1, 1)).why_not_stock() is None]


def fold(weights: Mapping[str, Tensor], args: Namespace, scheme: ResidualScheme) -> Folded:
    """Fold one of our models into the parameters and options of a stock model.

    `scheme` has the alphas used in training.

    Raises ValueError if no stock layer can compute the scheme, or the weights cannot be folded.
    """
    reason = scheme.why_not_stock()
    if reason is not None:
        raise ValueError(
            f"a model of --residual-scheme {scheme.name} cannot become a stock Transformer:"
            f" {reason}; use it through fairseq with --user-dir (schemes that can:"
            f" {', '.join(foldable())})"
        )
    folded = Folded({name: weight for name, weight in weights.items() if not _LAYER.match(name)})
    folded.options |= scheme.stock_options()
    for stack in _stacks(weights):
        for number, layer in enumerate(stack.layers):
            stock = scheme.stock_layer(Place(stack.side, number), layer)
            folded.weights |= {stack.at(number) + name: weight for name, weight in stock.items()}
        folded.options[f"{stack.side.value}_normalize_before"] = scheme.norm is NormPlacement.PRE
        if scheme.norm is NormPlacement.POST:
            _fold_residuals(folded, args, scheme, stack)
    return folded


def _stacks(weights: Mapping[str, Tensor]) -> list[_Stack]:
    stacks: dict[str, _Stack] = {}
    for name, weight in weights.items():
        match = _LAYER.match(name)
        if match:
            prefix, number = match[1], int(match[3])
            stack = stacks.setdefault(prefix, _Stack(Side(match[2]), prefix))
            stack.layers.extend({} for _ in range(number + 1 - len(stack.layers)))
            stack.layers[number][name.removeprefix(match[0])] = weight
    return list(stacks.values())


def _fold_residuals(folded: Folded, args: Namespace, scheme: ResidualScheme, stack: _Stack) -> None:
    below = ""  # LayerNorm whose output the sublayer reads; the first sublayer reads the embeddings
    sublayers = ((number, sublayer) for number in range(len(stack.layers)) for sublayer in Sublayer)
    for number, sublayer in sublayers:
        layer, name = stack.layers[number], stack.at(number)
        if f"{_EXIT[sublayer]}.weight" not in layer:
            continue
        start = f"residuals.{sublayer.value}."
        learned = {
            key.removeprefix(start): weight.float()
            for key, weight in layer.items()
            if key.startswith(start)
        }
        factor = scheme.residual_weight(Place(stack.side, number), learned)
        if isinstance(factor, Tensor) and len(factor.unique()) == 1:
            factor = float(factor.flatten()[0])
        check_divisor(factor, f"{name}{sublayer.value}")
        if isinstance(factor, Tensor):
            if below:
                folded.scale(f"{below}.weight", f"{below}.bias", by=factor)
            else:
                scale_embeddings(folded, args, stack, factor)
            folded.scale(*(f"{name}{entry}.weight" for entry in _ENTRY[sublayer]), by=1 / factor)
        elif factor != 1.0:
            last = f"{name}{_EXIT[sublayer]}"
            folded.scale(f"{last}.weight", f"{last}.bias", by=1 / factor)
        below = f"{name}{_NORM[sublayer]}"


def check_divisor(factor: Tensor | float, name: str) -> None:
    """Raise ValueError with the sublayer's name if a divisor is NaN or almost 0."""
    if not bool((torch.as_tensor(factor).abs() > _SMALLEST).all()):
        raise ValueError(
            f"{name}: the residual's weight is 0 or NaN, which no stock layer can compute; use the"
            " model through fairseq with --user-dir"
        )


def scale_embeddings(folded: Folded, args: Namespace, stack: _Stack, factor: Tensor) -> None:
    """Multiply a stack's word and position embeddings by `factor`.

    The scaled word table is no longer tied to the other side's table or the vocabulary projection,
    which do not change. Sinusoids become a learned table of all positions that the model accepts.

    Raises ValueError if --merge-src-tgt-embed ties the tables of both sides.
    """
    prefix, side = stack.prefix, stack.side
    norm, positions = f"{prefix}layernorm_embedding", f"{prefix}embed_positions.weight"
    if f"{norm}.weight" in folded.weights:
        folded.scale(f"{norm}.weight", f"{norm}.bias", by=factor)
        return
    if f"{prefix}project_in_dim.weight" in folded.weights:
        folded.scale(f"{prefix}project_in_dim.weight", by=factor[:, None])
    elif getattr(args, "merge_src_tgt_embed", False):
        raise ValueError(
            "--merge-src-tgt-embed ties the tables of both sides, which would have to differ; use"
            " the model through fairseq with --user-dir"
        )
    else:
        folded.scale(f"{prefix}embed_tokens.weight", by=factor)
        tied = ("share_all_embeddings", "share_decoder_input_output_embed")
        # fairseq's encoder-only model has a different option
        one_side = "sentence_encoder." in prefix
        folded.options |= (
            {"untie_weights_roberta": True} if one_side else dict.fromkeys(tied, False)
        )
    if positions not in folded.weights and not args.no_token_positional_embeddings:
        decoder = side is Side.DECODER
        longest = args.max_target_positions if decoder else args.max_source_positions
        folded.weights[positions] = sinusoids(longest, factor.numel())
        folded.options[f"{side.value}_learned_pos"] = True
    if positions in folded.weights:
        folded.scale(positions, by=factor)


def sinusoids(longest: int, width: int) -> Tensor:
    """Return a sinusoidal position table [FIRST_POSITION + longest, width]."""
    return SinusoidalPositionalEmbedding.get_embedding(FIRST_POSITION + longest, width, PADDING)


def position_table(
    weights: Mapping[str, Tensor], args: Namespace, side: str, longest: int
) -> Tensor:
    """Return a stock model's position vectors [longest, C] for the first positions of a sentence.

    There are fewer vectors if a learned table is shorter than `longest`.
    """
    if (name := f"{side}.embed_positions.weight") in weights:
        return weights[name].float()[FIRST_POSITION:][:longest]
    width = getattr(args, f"{side}_embed_dim")
    if args.no_token_positional_embeddings:
        return torch.zeros(longest, width)
    return sinusoids(longest, width)[FIRST_POSITION:]
