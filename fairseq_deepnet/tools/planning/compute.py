"""Floating-point operations of an update, and the time they take.

A multiplication with an addition counts as two. Only matrix products count; the rest (LayerNorm,
dropout, softmax) is bound by memory, and is what the utilisation stands for.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from fairseq_deepnet.footprint import Model, Training
from fairseq_deepnet.footprint.activations import MicroBatch
from fairseq_deepnet.footprint.parameters import SUBLAYERS
from fairseq_deepnet.schemes import Side, Sublayer

UTILISATION: Final = 0.3
"""Share of the device's peak that training reaches, unless told: assumed, not measured."""

GEMM_UTILISATION: Final = 0.6
"""Share of a measured rate of matrix products that training reaches: assumed, not measured. What it
loses are LayerNorm, dropout, softmax and the optimiser, which are bound by memory."""

KERNELS: Final = {Side.ENCODER: (18, 32), Side.DECODER: (28, 50)}
"""Kernels that a layer starts forward and backward: DeepNorm with dropout, as torch dispatches."""

OPTIMISER_KERNELS: Final = 15
"""Kernels a parameter tensor of fairseq's optimisers, with the scaling and norm of its gradient."""

KERNEL_SECONDS: Final = 8e-6
"""Time to start a kernel from Python: assumed. Deep, narrow stacks on fast GPUs are bound by it."""


@dataclasses.dataclass(frozen=True)
class Flops:
    """Operations, all forward, of one micro-batch on one device.

    Arguments:
        linear: the linear maps of both stacks
        attention: Q K^T and weights x V, of whole sentences (kernels skip the masked half of the
            decoder's at best)
        projection: to the vocabulary
        fused: whether attention's backward computes Q K^T again
        recomputation: layers that backward computes again
    """

    linear: int
    attention: int
    projection: int
    fused: bool
    recomputation: int

    @property
    def backward(self) -> float:
        """Twice the forward pass; a fused attention has five products for two."""
        return 2 * (self.linear + self.projection) + (2.5 if self.fused else 2) * self.attention

    @property
    def total(self) -> float:
        """Forward, backward and recomputation."""
        return self.linear + self.attention + self.projection + self.backward + self.recomputation


def count(model: Model, batch: MicroBatch) -> Flops:
    """Count the operations of one micro-batch.

    A linear map from a to b channels costs 2 a b a token; attention 4 C a query and key.
    """
    linear = attention = again = 0
    for side in Side:
        shape, n = model.layers[side], batch.tokens(side)
        c, f, depth = shape.embed_dim, shape.ffn_dim, model.depths.of(side)
        per_layer, attending = 2 * n * (2 * c * f), 0
        for sublayer in SUBLAYERS[side][:-1]:
            cross = sublayer is Sublayer.ENCODER_ATTN
            keys_of = Side.ENCODER if cross else side
            source = shape.source_dim if cross else c
            per_layer += 2 * (2 * n * c * c + 2 * batch.tokens(keys_of) * source * c)
            attending += 4 * n * batch.length(keys_of) * c
        linear += depth * per_layer
        attention += depth * attending
        again += model.recomputed(side) * (per_layer + attending)
    n, width = batch.tokens(Side.DECODER), model.layers[Side.DECODER].embed_dim
    projection = 2 * n * model.output_dim * model.vocabulary[1]
    if model.output_dim != width:
        projection += 2 * n * width * model.output_dim
    return Flops(
        linear=linear,
        attention=attention,
        projection=projection,
        fused=batch.is_fused(model.layers[Side.ENCODER].attention_dropout),
        recomputation=again,
    )


def seconds_per_update(
    flops: Flops,
    model: Model,
    training: Training,
    tensors: int,
    teraflops: float,
    utilisation: float,
) -> float:
    """Time of an update; devices work side by side, communication is taken to be hidden.

    A micro-batch takes as long as its operations, or as starting its kernels if that is longer. The
    optimiser goes through the parameter tensors in Python, unless it is fused_adam or they are one
    flat copy.

    Arguments:
        tensors: how many parameter tensors there are
        teraflops: the peak of one device in the training's precision, 10^12 a second
        utilisation: share of it that is reached
    """
    computing = flops.total / (teraflops * 1e12 * utilisation)
    kernels = 0
    for side, (forward, backward) in KERNELS.items():
        kernels += model.depths.of(side) * (forward + backward) + model.recomputed(side) * forward
    flat = training.flat and not training.memory_efficient
    pieces = 1 if flat or training.optimizer == "fused_adam" else tensors
    stepping = pieces * OPTIMISER_KERNELS * KERNEL_SECONDS
    return training.update_freq * max(computing, kernels * KERNEL_SECONDS) + stepping
