"""How fast this machine multiplies matrices of a model's size."""

from __future__ import annotations

import time
from typing import Final

import torch

from fairseq_deepnet.footprint import Model, Training
from fairseq_deepnet.schemes import Side

SECONDS: Final = 2.0
"""How long to measure, after a round that is not counted."""

DTYPES: Final = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def measure_teraflops(model: Model, training: Training, seconds: float = SECONDS) -> float:
    """Rate of one micro-batch's feed-forward map [tokens, C] x [C, F], 10^12 operations a second.

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
