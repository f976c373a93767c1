"""What a model is said to be, side by side: its scheme, and how its weights are to start."""

from __future__ import annotations

import dataclasses
import math
from argparse import Namespace
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer import TransformerModelBase
from fairseq.models.transformer_lm import TransformerLanguageModel
from torch import nn

from fairseq_deepnet.anatomy import PROJECTIONS, Stack
from fairseq_deepnet.models.scheme_options import scheme_of, stock_scheme
from fairseq_deepnet.schemes import (
    Depths,
    Place,
    ResidualScheme,
    Role,
    Side,
    Sublayer,
    scheme_class,
)

BERT_STD = 0.02


def xavier_std(linear: nn.Linear) -> float:
    """sqrt(2 / (fan_in + fan_out))."""
    return math.sqrt(2 / (linear.in_features + linear.out_features))


def linear_default_std(linear: nn.Linear) -> float:
    """Of weight and bias of an nn.Linear that nobody initialised: uniform, +- 1/sqrt(fan_in)."""
    return 1 / math.sqrt(3 * linear.in_features)


class Start(Protocol):
    """How the linear maps of a layer start: standard deviations around 0."""

    def weight(self, place: Place, sublayer: Sublayer, role: Role, linear: nn.Linear) -> float:
        """Of the weight."""

    def bias(self, sublayer: Sublayer, role: Role, linear: nn.Linear) -> float:
        """Of the bias."""


@dataclasses.dataclass(frozen=True)
class SchemeStart:
    """As a scheme says: Xavier times its gain, biases 0."""

    scheme: ResidualScheme

    def weight(self, place: Place, sublayer: Sublayer, role: Role, linear: nn.Linear) -> float:
        return self.scheme.gain(place, sublayer, role) * xavier_std(linear)

    def bias(self, sublayer: Sublayer, role: Role, linear: nn.Linear) -> float:
        return 0.0


@dataclasses.dataclass(frozen=True)
class FairseqStart:
    """As stock fairseq: q, k and v Xavier-uniform and smaller by sqrt(2) where their fans are one,
    out_proj Xavier-uniform with bias 0; all else nn.Linear's default.
    """

    same_dim: bool  # of cross-attention: whether the encoder is as wide as the decoder

    def weight(self, place: Place, sublayer: Sublayer, role: Role, linear: nn.Linear) -> float:
        if sublayer is Sublayer.FFN:
            return linear_default_std(linear)
        smaller = role is not Role.OUT_PROJ and (
            self.same_dim or sublayer is not Sublayer.ENCODER_ATTN
        )
        return xavier_std(linear) / (math.sqrt(2) if smaller else 1)

    def bias(self, sublayer: Sublayer, role: Role, linear: nn.Linear) -> float:
        return 0.0 if role is Role.OUT_PROJ else linear_default_std(linear)


@dataclasses.dataclass(frozen=True)
class BertStart:
    """As fairseq's RoBERTa: N(0, 0.02), biases 0."""

    def weight(self, place: Place, sublayer: Sublayer, role: Role, linear: nn.Linear) -> float:
        return BERT_STD

    def bias(self, sublayer: Sublayer, role: Role, linear: nn.Linear) -> float:
        return 0.0


@dataclasses.dataclass(frozen=True)
class Claim:
    """What is to be found.

    Arguments:
        schemes: of each side
        starts: how each side's linear maps start
        scaled_ends: whether the scheme may change embeddings and vocabulary projection
        bert_ends: embeddings N(0, 0.02) instead of N(0, 1 / C)
        text: what makes the claim, to follow "judged as"
    """

    schemes: dict[Side, ResidualScheme]
    starts: dict[Side, Start]
    scaled_ends: bool
    bert_ends: bool
    text: str

    def table_std(self, width: int) -> float:
        """Of an embedding table or a vocabulary projection before the scheme changes it."""
        return BERT_STD if self.bert_ends else width**-0.5


def make_claim(
    model: nn.Module, args: Namespace | None, stacks: Sequence[Stack], name: str | None
) -> Claim:
    """The claim called `name`, or, where None, the one that the model's own arguments make.

    Raises ValueError for a model whose arguments claim nothing that is known.
    """
    own = getattr(args, "residual_scheme", None)
    bert = isinstance(model, RobertaModel)
    stock = _stock_start(model, args, stacks)
    if own is not None and name in (None, own):
        scheme = _fresh(scheme_of(args, tuple(stack.side for stack in stacks)))
        schemes = {stack.side: scheme for stack in stacks}
        is_stock, text = getattr(args, "init", "scheme") == "stock", "its own arguments say"
    elif name is not None:
        scheme = scheme_class(name)(_depths(stacks))
        schemes = {stack.side: scheme for stack in stacks}
        # fairseq's own start is part of some schemes' claim, and only fairseq's models have it
        is_stock = stock is not None and own is None and scheme.stock_initialisation
        text = f"--claim {name} says"
    elif stock is not None:
        depths = _depths(stacks)
        schemes = {stack.side: stock_scheme(args, stack.side)(depths) for stack in stacks}
        is_stock, text = True, "its own arguments say"
    else:
        raise ValueError(
            f"{type(model).__name__} is neither ours nor fairseq's Transformer, so that nothing is"
            " claimed by itself: say what it is meant to be, with --claim SCHEME"
        )
    starts: dict[Side, Start] = {
        side: stock if is_stock and stock is not None else SchemeStart(scheme)
        for side, scheme in schemes.items()
    }
    return Claim(schemes, starts, not is_stock, bert, text)


def _fresh(scheme: ResidualScheme) -> ResidualScheme:
    """The same without what a checkpoint recorded: the formula is what is claimed."""
    return type(scheme)(scheme.depths, variant=scheme.variant)


def _depths(stacks: Sequence[Stack]) -> Depths:
    layers = {stack.side: len(stack.layers) for stack in stacks}
    return Depths(layers.get(Side.ENCODER, 0), layers.get(Side.DECODER, 0))


def _stock_start(model: nn.Module, args: Namespace | None, stacks: Sequence[Stack]) -> Start | None:
    """What `--init stock` means for this model; None for a model that is not fairseq's or ours."""
    if isinstance(model, RobertaModel):
        return BertStart()
    if isinstance(model, TransformerModelBase | TransformerLanguageModel) and args is not None:
        widths = {_width(stack) for stack in stacks}
        return FairseqStart(same_dim=len(widths) == 1)
    return None


def _width(stack: Stack) -> int:
    return int(stack.layers[0].branches[-1].linears[Role.FC2].out_features)


def end_factors(claim: Claim, stacks: Sequence[Stack]) -> dict[int, float]:
    """What the schemes multiply embeddings and vocabulary projections by: id of weight -> factor.

    Found by letting them act on ones, tied as the model's are.
    """
    weights: dict[int, nn.Parameter] = {}
    ends: dict[Side, nn.Module] = {}
    for stack in stacks:
        end = ends[stack.side] = nn.Module()
        for name in ("embed_tokens", *PROJECTIONS):
            table: Any = getattr(stack.module, name, None)
            weight = getattr(table, "weight", None)
            if not isinstance(weight, nn.Parameter):
                continue
            small = nn.Embedding(2, 2) if isinstance(table, nn.Embedding) else nn.Linear(2, 2)
            small.weight = weights.setdefault(id(weight), nn.Parameter(torch.ones(2, 2)))
            setattr(end, name, small)
    if claim.scaled_ends:
        for scheme in {id(scheme): scheme for scheme in claim.schemes.values()}.values():
            scheme.initialise_ends(ends)
    return {key: float(weight.detach().square().mean().sqrt()) for key, weight in weights.items()}
