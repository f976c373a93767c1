"""What a model is claimed to be, side by side: its scheme, and how its weights start."""

from __future__ import annotations

import dataclasses
import math
from argparse import Namespace
from collections.abc import Sequence
from typing import Any, Final, Literal

import torch
from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer import TransformerModelBase
from fairseq.models.transformer_lm import TransformerLanguageModel
from torch import nn

from fairseq_deepnet.anatomy import PROJECTIONS, Branch, Stack
from fairseq_deepnet.models.scheme_options import scheme_of, stock_scheme
from fairseq_deepnet.schemes import (
    Depths,
    NormPlacement,
    Place,
    ResidualScheme,
    Role,
    Side,
    Sublayer,
    scheme_class,
)

BERT_STD: Final = 0.02

Start = ResidualScheme | Literal["fairseq", "roberta"]
"""Who draws the linear maps' first weights."""


def xavier_std(linear: nn.Linear) -> float:
    """Return sqrt(2 / (fan_in + fan_out))."""
    return math.sqrt(2 / (linear.in_features + linear.out_features))


def linear_default_std(linear: nn.Linear) -> float:
    """Return the standard deviation of nn.Linear's default: uniform, +- 1/sqrt(fan_in)."""
    return 1 / math.sqrt(3 * linear.in_features)


def initial_std(start: Start, place: Place, branch: Branch, role: Role) -> tuple[float, float]:
    """Return the standard deviations, around 0, of weight and bias of a new linear map.

    A scheme: Xavier times its gain, biases 0. fairseq: q, k and v Xavier-uniform and smaller by
    sqrt(2) where their fans are one, out_proj Xavier-uniform with bias 0, all else nn.Linear's
    default. fairseq's RoBERTa: N(0, 0.02), biases 0.
    """
    linear = branch.linears[role]
    if isinstance(start, ResidualScheme):
        return start.gain(place, branch.sublayer, role) * xavier_std(linear), 0.0
    if start == "roberta":
        return BERT_STD, 0.0
    default = linear_default_std(linear)
    if branch.sublayer is Sublayer.FFN:
        return default, default
    if role is Role.OUT_PROJ:
        return xavier_std(linear), 0.0
    same_dim = branch.linears[Role.K_PROJ].in_features == branch.linears[Role.Q_PROJ].in_features
    return xavier_std(linear) / (math.sqrt(2) if same_dim else 1), default


@dataclasses.dataclass(frozen=True)
class Claim:
    """What a model is to be.

    Args:
        schemes: of each side.
        starts: how each side's linear maps start.
        final_norms: whether a LayerNorm follows each stack.
        scaled_ends: whether the scheme may change embeddings and vocabulary projection.
        bert_ends: embeddings N(0, 0.02) instead of N(0, 1 / C).
        text: what makes the claim, to follow "judged as".
    """

    schemes: dict[Side, ResidualScheme]
    starts: dict[Side, Start]
    final_norms: dict[Side, bool]
    scaled_ends: bool
    bert_ends: bool
    text: str

    def scheme_text(self, side: Side) -> str:
        """Name the scheme of a side, and what of it is not its default."""
        scheme = self.schemes[side]
        variant = f", variant {scheme.variant}" if scheme.variant else ""
        return f"{scheme.name}{variant}" + ("" if self.scaled_ends else ", stock initialisation")

    def embedding_std(self, width: int) -> float:
        """Return that of an embedding table or projection before the scheme changes it."""
        return BERT_STD if self.bert_ends else width**-0.5


def make_claim(
    model: nn.Module, args: Namespace | None, stacks: Sequence[Stack], name: str | None
) -> Claim:
    """Return the claim called `name`, or, where None, the one that the model's arguments make.

    Raises:
        ValueError: for a model of which the arguments claim nothing that is known.
    """
    layers = {stack.side: len(stack.layers) for stack in stacks}
    depths = Depths(layers.get(Side.ENCODER, 0), layers.get(Side.DECODER, 0))
    own = getattr(args, "residual_scheme", None)
    stock = _stock_start(model, args)
    if own is not None and name in (None, own):
        recorded = scheme_of(args, tuple(layers))
        # without the alphas that a checkpoint recorded: the formula is what is claimed
        scheme = type(recorded)(recorded.depths, variant=recorded.variant)
        schemes = dict.fromkeys(layers, scheme)
        is_stock, text = getattr(args, "init", "scheme") == "stock", "its own arguments say"
    elif name is not None:
        schemes = dict.fromkeys(layers, scheme_class(name)(depths))
        # fairseq's own start is part of some schemes' claim, and only fairseq's models have it
        is_stock = stock is not None and own is None and scheme_class(name).stock_initialisation
        text = f"--claim {name} says"
    elif stock is not None:
        schemes = {side: stock_scheme(args, side)(depths) for side in layers}
        is_stock, text = True, "its own arguments say"
    else:
        raise ValueError(
            f"{type(model).__name__} is neither ours nor fairseq's Transformer, so that nothing is"
            " claimed by itself: say what it is meant to be, with --claim SCHEME"
        )
    starts: dict[Side, Start] = {
        side: stock if is_stock and stock is not None else scheme
        for side, scheme in schemes.items()
    }
    without = {Side.DECODER} if getattr(args, "no_decoder_final_norm", False) else set()
    norms = {
        side: scheme.norm is NormPlacement.PRE and side not in without
        for side, scheme in schemes.items()
    }
    return Claim(schemes, starts, norms, not is_stock, isinstance(model, RobertaModel), text)


def _stock_start(model: nn.Module, args: Namespace | None) -> Start | None:
    """Return what `--init stock` means for this model; None for one of neither fairseq nor us."""
    if isinstance(model, RobertaModel):
        return "roberta"
    known = isinstance(model, TransformerModelBase | TransformerLanguageModel)
    return "fairseq" if known and args is not None else None


def end_factors(claim: Claim, stacks: Sequence[Stack]) -> dict[int, float]:
    """Return what the schemes multiply embeddings and projections by: id of weight -> factor.

    Found by applying them to ones, tied as the model's are.
    """
    weights: dict[int, nn.Parameter] = {}
    ends: dict[Side, nn.Module] = {}
    for stack in stacks:
        end = ends[stack.side] = nn.Module()
        for name in ("embed_tokens", *PROJECTIONS):
            table: Any = getattr(stack.module, name, None)
            weight = getattr(table, "weight", None)
            if isinstance(weight, nn.Parameter):
                small = nn.Embedding(2, 2) if isinstance(table, nn.Embedding) else nn.Linear(2, 2)
                small.weight = weights.setdefault(id(weight), nn.Parameter(torch.ones(2, 2)))
                setattr(end, name, small)
    if claim.scaled_ends:
        for scheme in {id(scheme): scheme for scheme in claim.schemes.values()}.values():
            scheme.initialise_ends(ends)
    return {key: float(weight.detach().square().mean().sqrt()) for key, weight in weights.items()}
