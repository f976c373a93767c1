"""Small models of ours and of fairseq's, built the way fairseq builds them."""

from collections.abc import Callable
from typing import Any

import torch

import fairseq_deepnet  # noqa: F401  (registers the architectures)
from fairseq_deepnet import standalone

SYMBOLS = 60
BuildModel = Callable[..., Any]


def build_model(arch: str = "deepnet_transformer", seed: int = 1, **options: Any) -> Any:
    """A model of `arch`, 32 wide and 3L-2L unless `options` say otherwise, without dropout."""
    small: dict[str, Any] = {"encoder_layers": 3, "decoder_layers": 2, "dropout": 0.0}
    for side in ("encoder", "decoder"):
        small |= {f"{side}_embed_dim": 32, f"{side}_ffn_embed_dim": 48}
        small |= {f"{side}_attention_heads": 4}
    torch.manual_seed(seed)
    return standalone.build_model(arch, standalone.VocabularyTask(4 + SYMBOLS), **(small | options))
