"""Floating-point operations of an update, the time they take, and how fast this machine is.

A multiplication with an addition counts as two. Only matrix products count; the rest (LayerNorm,
dropout, softmax) is bound by memory, and is what the utilisation stands for.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Final

import torch

from fairseq_deepnet.footprint import Model, Training
from fairseq_deepnet.footprint.activations import MicroBatch
from fairseq_deepnet.footprint.parameters import build_layer
from fairseq_deepnet.schemes import Role, Side, Sublayer

UTILISATION: Final = 0.3
"""Share of the device's peak that training reaches if nothing else is given: assumed."""

GEMM_UTILISATION: Final = 0.6
"""Share of a measured rate of matrix products that training reaches: assumed, not measured. What it
loses are LayerNorm, dropout, softmax and the optimiser, which are bound by memory."""

KERNELS: Final = {Side.ENCODER: (18, 32), Side.DECODER: (28, 50)}
"""Kernels that a layer starts forward and backward: DeepNorm with dropout, as torch dispatches."""

OPTIMISER_KERNELS: Final = 15
"""Kernels a parameter tensor of fairseq's optimisers, with the scaling and norm of its gradient."""

KERNEL_SECONDS: Final = 8e-6
"""Time to start a kernel from Python: assumed. Deep, narrow stacks on fast GPUs are bound by it."""

MEASURED_SECONDS: Final = 2.0
"""How long to measure, after a round that is not counted."""

DTYPES: Final = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclasses.dataclass(frozen=True)
class Flops:
    """Operations, all forward, of one micro-batch on one device.

    Args:
        attention: Q K^T and weights x V, of whole sentences (kernels skip the masked half of the
            decoder's at best)
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

    A linear map from a to b channels costs 2 a b a token; attention 4 C a query and key. Tests
    compare this with torch's FlopCounterMode, which takes seconds to trace attention on the meta
    device.
    """
    linear = attention = again = 0
    for side in Side:
        n, depth = batch.tokens(side), model.depths.of(side)
        per_layer = attending = 0
        for sublayer, role, each in build_layer(model, side).linears():
            keys_of = Side.ENCODER if sublayer is Sublayer.ENCODER_ATTN else side
            read = keys_of if role in (Role.K_PROJ, Role.V_PROJ) else side
            per_layer += 2 * batch.tokens(read) * each.weight.numel()
            if role is Role.Q_PROJ:
                attending += 4 * n * batch.length(keys_of) * model.layers[side].embed_dim
        linear += depth * per_layer
        attention += depth * attending
        again += model.recomputed(side) * (per_layer + attending)
    n, width = batch.tokens(Side.DECODER), model.layers[Side.DECODER].embed_dim
    projection = 2 * n * model.output_dim * model.vocabulary[1]
    if model.output_dim != width:
        projection += 2 * n * width * model.output_dim
    fused = batch.is_fused(model.layers[Side.ENCODER].attention_dropout)
    return Flops(linear, attention, projection, fused, again)


def seconds_per_update(
    flops: Flops,
    model: Model,
    training: Training,
    tensors: int,
    teraflops: float,
    utilisation: float,
) -> float:
    """Return the time of an update; devices work side by side, communication counts as hidden.

    A micro-batch takes as long as its operations, or as starting its kernels if that is longer. The
    optimiser goes through the parameter tensors in Python, unless it is fused_adam or they are one
    flat copy.

    Args:
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


def measure_teraflops(model: Model, training: Training, seconds: float = MEASURED_SECONDS) -> float:
    """Measure one micro-batch's feed-forward map [tokens, C] x [C, F] in TFLOP/s.

    On the GPU if the training is for one and one is here, else on the CPU with torch's threads.
    Raises ValueError where the plan is for GPUs and there is none.
    """
    if training.gpus and not torch.cuda.is_available():
        raise ValueError("--measure: no GPU here to measure; give --teraflops, or --gpus 0")
    device = "cuda" if training.gpus else "cpu"
    shape, dtype = model.layers[Side.ENCODER], DTYPES[training.precision]
    left = torch.randn(training.max_tokens, shape.embed_dim, device=device, dtype=dtype)
    right = torch.randn(shape.embed_dim, shape.ffn_dim, device=device, dtype=dtype)
    operations = 2 * left.numel() * shape.ffn_dim

    def rounds(limit: float) -> float:
        done, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < limit or not done:
            for _ in range(10):
                left @ right
            if device == "cuda":
                torch.cuda.synchronize()
            done += 10
        return done * operations / spent

    rounds(seconds / 10)
    return rounds(seconds) / 1e12
