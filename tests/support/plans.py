"""The plan's view of the models that tests.support.models builds."""

from argparse import Namespace
from typing import Any

from fairseq.models import ARCH_CONFIG_REGISTRY

from fairseq_deepnet.planning import setting
from tests.support.models import SYMBOLS

WORDS = 4 + SYMBOLS


def plan_of(arch: str = "deepnet_transformer", **options: Any) -> setting.Model:
    """The shape that tests.support.models builds with the same options."""
    small: dict[str, Any] = {"encoder_layers": 3, "decoder_layers": 2, "dropout": 0.0}
    for side in ("encoder", "decoder"):
        small |= {f"{side}_embed_dim": 32, f"{side}_ffn_embed_dim": 48}
        small |= {f"{side}_attention_heads": 4}
    args = Namespace(arch=arch, **(small | options))
    ARCH_CONFIG_REGISTRY[arch](args)
    return setting.read_model(args, (WORDS, WORDS))
