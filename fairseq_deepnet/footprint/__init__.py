"""Shape of a model, its number of parameters, and the settings of its training.

To count parameters, one layer per side is built on the meta device. The count is exact and takes
milliseconds, whereas building a thousand layers takes seconds.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Final

import torch
from torch import nn

from ..anatomy import find_branches
from ..modules.layers import DecoderLayer, EncoderLayer, LayerShape, TransformerLayer
from ..modules.stack import ActivationCheckpointing
from ..schemes import Depths, NormPlacement, Place, ResidualScheme, Side
from ..stock_names import STOCK_NAMES

ADAFACTOR: Final = "adafactor"
OPTIMISERS: Final = ("adam", "fused_adam", ADAFACTOR)
"""Supported optimisers."""

FP32: Final = 4  # bytes
MEGABYTE: Final = 2**20
FULLY_SHARDED: Final = "fully_sharded"
"""Backend that splits weights, gradients and optimiser state across devices."""

CHUNKED: Final = tuple(name for name in STOCK_NAMES if name.startswith("chunked_"))
"""Criterions that compute the tokens x vocabulary table in chunks."""

CRITERIONS: Final = (*CHUNKED, *(STOCK_NAMES[name] for name in CHUNKED))
"""Supported criterions; fairseq's own store the whole table of log-probabilities."""

LAYERS: Final[dict[Side, type[TransformerLayer]]] = {
    Side.ENCODER: EncoderLayer,
    Side.DECODER: DecoderLayer,
}
SUBLAYERS: Final = {side: layer.sublayers for side, layer in LAYERS.items()}


@dataclasses.dataclass(frozen=True)
class Model:
    """Shape of an encoder-decoder.

    Args:
        vocabulary: numbers of entries in the source dictionary and in the target dictionary
        share_all: True if source, target and the vocabulary projection share one embedding table
        share_output: True if the vocabulary projection shares the target embedding table
        output_dim: number of input channels of the vocabulary projection
        positions: number of rows in each side's position table
        learned_positions: True for a side whose position table is a parameter
        decoder_final_norm: True if a Pre-LN decoder ends in a LayerNorm
        checkpointing: activation-checkpointing settings of each stack
        streams_in_fp32: True if the residual stream is in fp32 (--residual-dtype)
    """

    arch: str
    scheme: ResidualScheme
    layers: Mapping[Side, LayerShape]
    vocabulary: tuple[int, int]
    share_all: bool
    share_output: bool
    output_dim: int
    positions: Mapping[Side, int]
    learned_positions: Mapping[Side, bool]
    embedding_norm: bool
    decoder_final_norm: bool
    checkpointing: Mapping[Side, ActivationCheckpointing]
    streams_in_fp32: bool

    @property
    def depths(self) -> Depths:
        """Number of layers per side."""
        return self.scheme.depths

    def recomputed(self, side: Side) -> int:
        """Return the number of layers of a side that are recomputed in the backward pass."""
        return self.depths.of(side) if self.checkpointing[side].every else 0

    def has_final_norm(self, side: Side) -> bool:
        """Return True if a final LayerNorm follows the stack of this side."""
        expected = side is Side.ENCODER or self.decoder_final_norm
        return self.scheme.norm is NormPlacement.PRE and expected

    @property
    def is_stock(self) -> bool:
        """True if the layers are fairseq's own."""
        return not self.arch.startswith("deepnet_")


@dataclasses.dataclass(frozen=True)
class Training:
    """Training settings that affect memory.

    Args:
        max_tokens: tokens, including padding, per micro-batch and device on the longer side
        update_freq: maximum number of micro-batches per update and device
        memory_efficient: True if there is no fp32 copy of the weights (--memory-efficient-*)
        flat: True if the fp32 weights are one tensor (--fp16 without --fp16-no-flatten-grads)
        gpus: total number of GPUs; 0 means one process on a CPU
        unit_bytes: size of each group of layers that a sharded model gathers (--bucket-cap-mb)
        reshard: True if these groups of layers are resharded between forward and backward
        offload: True if the shards are in host memory (--cpu-offload)
    """

    max_tokens: int
    update_freq: int
    precision: str
    memory_efficient: bool
    flat: bool
    optimizer: str
    criterion: str
    ddp_backend: str
    gpus: int
    unit_bytes: int = 25 * MEGABYTE
    reshard: bool = True
    offload: bool = False

    @property
    def devices(self) -> int:
        """Total number of processes."""
        return max(self.gpus, 1)

    @property
    def element(self) -> int:
        """Bytes per element of weights, gradients and activations."""
        return 4 if self.precision == "fp32" else 2

    @property
    def sharded(self) -> bool:
        """True if weights, gradients and optimiser state are split across devices."""
        return self.ddp_backend == FULLY_SHARDED

    @property
    def gradient(self) -> float:
        """Bytes of a parameter's gradient on each device, after backward through its layer."""
        if not self.sharded:
            return self.element
        return 0 if self.offload else FP32 / self.devices

    @property
    def tokens(self) -> int:
        """Tokens per update over all devices, counted on the longer side."""
        return self.max_tokens * self.update_freq * self.devices


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Parameter counts.

    Args:
        embeddings: word embeddings, learned positions and LayerNorms; a shared table counts once
        projection: vocabulary projection; 0 if it shares the target embedding table
        layer: one layer of each side, without the parameters that its scheme adds
        encoder, decoder: the whole stack, including the scheme's parameters and final LayerNorm
        largest: size of the largest tensor
        tensors: number of tensors
    """

    embeddings: int
    projection: int
    layer: dict[Side, int]
    encoder: int
    decoder: int
    largest: int
    tensors: int

    @property
    def total(self) -> int:
        """Total number of parameters."""
        return self.embeddings + self.projection + self.encoder + self.decoder


def count(model: Model) -> Parameters:
    """Count a model's parameters."""
    encoder, decoder = (_stack_sizes(model, side) for side in Side)
    embeddings = []
    for side, vocabulary in zip(Side, model.vocabulary, strict=True):
        width = model.layers[side].embed_dim
        if side is Side.ENCODER or not model.share_all:
            embeddings.append(vocabulary * width)
        if model.learned_positions[side] and model.positions[side]:
            embeddings.append(model.positions[side] * width)
        embeddings += [width, width] * model.embedding_norm
    width, out = model.layers[Side.DECODER].embed_dim, model.output_dim
    projection = [width * out] * (width != out)
    projection += [out * model.vocabulary[1]] * (not model.share_output)
    every = [*embeddings, *projection, *encoder, *decoder]
    layer = {side: _count_layer(model, side) for side in Side}
    ends = sum(embeddings), sum(projection)
    return Parameters(*ends, layer, sum(encoder), sum(decoder), max(every), len(every))


def build_layer(model: Model, side: Side) -> TransformerLayer:
    """Build a side's first layer on the meta device; its other layers have the same sizes."""
    return _build(model.layers[side], model.scheme, side)


@functools.lru_cache(maxsize=16)
def _build(shape: LayerShape, scheme: ResidualScheme, side: Side) -> TransformerLayer:
    with torch.device("meta"):
        return LAYERS[side](shape, scheme, Place(side, 0))


def _count_layer(model: Model, side: Side) -> int:
    """Count the parameters in one layer's linear maps and LayerNorms.

    For C channels and feed-forward width F, with equal widths on both sides, the count is
    4 C^2 + 2 C F + 9 C + F in the encoder and 8 C^2 + 2 C F + 15 C + F in the decoder.
    """
    branches = find_branches(build_layer(model, side))
    modules = [module for branch in branches for module in (*branch.linears.values(), branch.norm)]
    return sum(sum(_sizes(module)) for module in modules)


def _sizes(module: nn.Module | None) -> list[int]:
    return [] if module is None else [parameter.numel() for parameter in module.parameters()]


def _stack_sizes(model: Model, side: Side) -> list[int]:
    """Return the sizes of all parameter tensors in a stack and in the modules after its layers."""
    depth, width = model.depths.of(side), model.layers[side].embed_dim
    sizes = _sizes(build_layer(model, side)) * depth
    sizes += [width, width] * model.has_final_norm(side)
    with torch.device("meta"):
        sizes += _sizes(model.scheme.build_combination(side, width))
        return sizes + _sizes(model.scheme.build_output_transform(side, width))
