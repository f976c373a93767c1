"""What is counted: a model's shape, and how it is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from ..modules import ActivationCheckpointing, LayerShape
from ..schemes import Depths, ResidualScheme, Side
from ..stock_names import STOCK_NAMES

STATES: Final[Mapping[str, int]] = {
    "adam": 2,
    "fused_adam": 2,
    "adamax": 2,
    "adadelta": 2,
    "adagrad": 1,
    "nag": 1,
}
"""fairseq's optimisers -> numbers that they keep a parameter; adafactor and sgd are special."""

FP32: Final = 4  # bytes
MEGABYTE: Final = 2**20
FULLY_SHARDED: Final = "fully_sharded"
"""The backend that splits weights, gradients and the optimiser's state over the devices."""

CHUNKED: Final = tuple(name for name in STOCK_NAMES if name.startswith("chunked_"))
"""Criterions that hold a chunk of the table tokens x vocabulary at a time."""

CRITERIONS: Final = (*CHUNKED, *(STOCK_NAMES[name] for name in CHUNKED))
"""Criterions whose memory is known; fairseq's hold the whole table, of log-probabilities."""


@dataclasses.dataclass(frozen=True)
class Model:
    """The shape of an encoder-decoder.

    Args:
        vocabulary: entries of the source's and the target's dictionary
        share_all: one table for source, target and the vocabulary projection
        share_output: the target's table is the vocabulary projection's too
        output_dim: channels that the vocabulary projection reads
        positions: rows of each side's table; learned ones are parameters
        decoder_final_norm: whether a Pre-LN decoder ends in a LayerNorm
        checkpointing: what backward keeps of the activations
        segment: layers that are asked to be checkpointed together; None: what needs least memory
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
    segment: int | None

    @property
    def depths(self) -> Depths:
        """Layers a side."""
        return self.scheme.depths

    def recomputed(self, side: Side) -> int:
        """Return how many layers of a side backward computes again."""
        return self.checkpointing[side].recomputed(self.depths.of(side))

    @property
    def checkpoint(self) -> bool:
        """True if backward computes any layer again."""
        return any(self.recomputed(side) for side in Side)

    @property
    def is_recomputed(self) -> bool:
        """True if backward computes all layers again."""
        return all(self.recomputed(side) == self.depths.of(side) for side in Side)

    @property
    def is_stock(self) -> bool:
        """True if the layers are fairseq's and not ours."""
        return not self.arch.startswith("deepnet_")


@dataclasses.dataclass(frozen=True)
class Training:
    """How the model is trained.

    Args:
        max_tokens: of one micro-batch on one device, on the longer side, padding included
        bounded: whether no batch may have more; else sentences are counted, of whatever length
        update_freq: micro-batches of one update on a device; the most that an epoch has
        max_update: updates of the whole run; None where nothing sets it
        memory_efficient: no fp32 copy of the weights (fairseq's MemoryEfficientFP16Optimizer)
        flat: the fp32 copy is one long tensor (fairseq's --fp16 unless --fp16-no-flatten-grads)
        first_moment: whether adafactor keeps one (--beta1), or sgd (--momentum)
        bucket_view: --gradient-as-bucket-view
        gpus: devices in all; 0 is one CPU process
        unit_bytes: that a sharded model gathers together (--bucket-cap-mb)
        reshard: whether it is split again between forward and backward
        offload: whether what is split lies in host memory (--cpu-offload)
        monitored: quantities that are measured at intervals (--monitor)
    """

    max_tokens: int
    bounded: bool
    update_freq: int
    max_update: int | None
    precision: str
    memory_efficient: bool
    flat: bool
    optimizer: str
    first_moment: bool
    criterion: str
    ddp_backend: str
    bucket_view: bool
    gpus: int
    unit_bytes: int = 25 * MEGABYTE
    reshard: bool = True
    offload: bool = False
    monitored: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """Processes in all."""
        return max(self.gpus, 1)

    @property
    def element(self) -> int:
        """Bytes of a weight, a gradient and an activation."""
        return 4 if self.precision == "fp32" else 2

    @property
    def sharded(self) -> bool:
        """True if each device holds a part of weights, gradients and the optimiser's state."""
        return self.ddp_backend == FULLY_SHARDED

    @property
    def gradient(self) -> float:
        """Bytes of a parameter's gradient on a device, once backward has left its layer."""
        if not self.sharded:
            return self.element
        return 0 if self.offload else FP32 / self.devices

    @property
    def tokens(self) -> int:
        """Tokens of one update over all devices, on the longer side."""
        return self.max_tokens * self.update_freq * self.devices
