"""Small models of ours and of fairseq's, built the way fairseq builds them."""

from argparse import Namespace
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from torch import Tensor, nn

import fairseq_deepnet.models  # noqa: F401  (registers the architectures)
from fairseq_deepnet.schemes import SCHEMES, ResidualScheme
from fairseq_deepnet.tools.standalone import VocabularyTask

SYMBOLS = 60
VARIANTS = [(name, variant) for name in SCHEMES for variant in SCHEMES[name].variants or (None,)]
"""Every scheme with each reading of its recipe; None where there is but one."""
FEW = ("deepnorm", "admin", "dlcl", "resi-dual")
"""Schemes tried everywhere by default: a constant, a profile, a sum of layers, two streams."""
BuildModel = Callable[..., Any]
Schemes = dict[str, type[ResidualScheme]]


def matrix(values: Iterable[Any], argument: str = "") -> list[Any]:
    """Parameters of a test that takes long with all schemes: but for FEW they are slow.

    values: names of schemes, or pairs as in VARIANTS, which fill two arguments, or the one named.
    """
    found = []
    for value in values:
        whole = argument or isinstance(value, str)
        marks = [] if (value if isinstance(value, str) else value[0]) in FEW else [pytest.mark.slow]
        found.append(pytest.param(*([value] if whole else value), marks=marks))
    return found


def small(**options: Any) -> dict[str, Any]:
    """Options of a model 32 wide and 3L-2L unless `options` say otherwise, without dropout."""
    found: dict[str, Any] = {"encoder_layers": 3, "decoder_layers": 2, "dropout": 0.0}
    for side in ("encoder", "decoder"):
        found |= {f"{side}_embed_dim": 32, f"{side}_ffn_embed_dim": 48}
        found |= {f"{side}_attention_heads": 4}
    return found | options


def build_model(arch: str = "deepnet_transformer", seed: int = 1, **options: Any) -> Any:
    """A model of `arch`, small unless `options` say otherwise."""
    torch.manual_seed(seed)
    args = Namespace(arch=arch, **small(**options))
    ARCH_CONFIG_REGISTRY[arch](args)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, VocabularyTask(4 + SYMBOLS))


def stir(model: nn.Module, seed: int = 5) -> None:
    """Change all that starts at a special value (0, 1, an average), so that it shows in outputs.

    A branch behind a factor or a weight of 0 is none: a model as built may hide any mistake in it.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() < 2 or not parameter.any() or "combination.weight" in name:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Cross-entropy of the next token over real positions alone."""
    return next_token_loss(model(**batch)[0], batch)


def next_token_loss(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """The same from logits [B, T, V]."""
    inputs = batch["prev_output_tokens"]
    target = inputs.roll(-1, dims=1).masked_fill(inputs.eq(1), 1)
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=1)
