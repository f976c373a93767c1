"""Shapes of the models in tests.support.models, as the plan reads them."""

from argparse import Namespace
from typing import Any

from fairseq.models import ARCH_CONFIG_REGISTRY

from fairseq_deepnet.footprint import Model, Training
from fairseq_deepnet.tools.planning.estimates import read_model
from tests.support.models import SYMBOLS, small

WORDS = 4 + SYMBOLS
TRAINING = Training(
    max_tokens=64,
    update_freq=1,
    precision="fp32",
    memory_efficient=False,
    flat=False,
    optimizer="adam",
    criterion="label_smoothed_cross_entropy",
    ddp_backend="pytorch_ddp",
    gpus=1,
)


def plan_of(arch: str = "deepnet_transformer", **options: Any) -> Model:
    """Return the shape of tests.support.models' model with the same options."""
    args = Namespace(arch=arch, **small(**options))
    ARCH_CONFIG_REGISTRY[arch](args)
    return read_model(args, (WORDS, WORDS))
