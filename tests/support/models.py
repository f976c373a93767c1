"""Small models of ours and of fairseq's, built the way fairseq builds them."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

import fairseq_deepnet  # noqa: F401  (registers the architectures)

SYMBOLS = 60
BuildModel = Callable[..., Any]


class DictionaryTask:
    """All that building a translation model asks of a fairseq task."""

    def __init__(self) -> None:
        self.source_dictionary = self.target_dictionary = Dictionary()
        for number in range(SYMBOLS):
            self.source_dictionary.add_symbol(f"w{number}")


def build_model(arch: str = "deepnet_transformer", seed: int = 1, **options: Any) -> Any:
    """A model of `arch`, 32 wide and 3L-2L unless `options` say otherwise, without dropout."""
    small: dict[str, Any] = {"encoder_layers": 3, "decoder_layers": 2, "dropout": 0.0}
    for side in ("encoder", "decoder"):
        small |= {f"{side}_embed_dim": 32, f"{side}_ffn_embed_dim": 48}
        small |= {f"{side}_attention_heads": 4}
    args = Namespace(arch=arch, **(small | options))
    ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(seed)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, DictionaryTask())
