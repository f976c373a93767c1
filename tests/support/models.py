"""Small models, ours and fairseq's, built as fairseq builds them."""

from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Sequence
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
"""All pairs of scheme and variant; the variant is None if a scheme has none."""
FEW = ("deepnorm", "admin", "dlcl", "resi-dual")
"""Schemes in quick tests: a constant, a profile, a sum of layers, two streams."""
Schemes = dict[str, type[ResidualScheme]]


def matrix(pairs: Sequence[tuple[str, Any]], whole: bool = False) -> list[Any]:
    """Return test parameters of which all schemes but FEW are marked as slow.

    Args:
        pairs: name of a scheme and another value.
        whole: each pair is a single argument.
    """
    marked = [(pair, [pytest.mark.slow] * (pair[0] not in FEW)) for pair in pairs]
    return [pytest.param(*([pair] if whole else pair), marks=marks) for pair, marks in marked]


def slow_but(few: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Return `values` as test parameters of which all but `few` are marked as slow."""
    return [v if v in few else pytest.param(v, marks=pytest.mark.slow) for v in values]


def small(**options: Any) -> dict[str, Any]:
    """Return options of a 3L-2L model of width 32 without dropout, updated with `options`."""
    defaults: dict[str, Any] = {"encoder_layers": 3, "decoder_layers": 2, "dropout": 0.0}
    for side in ("encoder", "decoder"):
        defaults |= {f"{side}_embed_dim": 32, f"{side}_ffn_embed_dim": 48}
        defaults |= {f"{side}_attention_heads": 4}
    return defaults | options


def build_model(arch: str = "deepnet_transformer", seed: int = 1, **options: Any) -> Any:
    """Build a model of `arch`, small unless `options` change its size."""
    torch.manual_seed(seed)
    args = Namespace(arch=arch, **small(**options))
    ARCH_CONFIG_REGISTRY[arch](args)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, VocabularyTask(4 + SYMBOLS))


def stir(model: nn.Module, seed: int = 5) -> None:
    """Perturb parameters with special initial values (0, 1, averages), which could hide errors."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() < 2 or not parameter.any() or "combination.weight" in name:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))


def sentences() -> Tensor:
    """Return tokens [B, T], with padding in two rows."""
    tokens = torch.randint(4, 60, (3, 9), generator=torch.Generator().manual_seed(7))
    tokens[1, 6:] = 1
    tokens[2, 3:] = 1
    return tokens


def log_probs(model: Any, tokens: Tensor) -> Tensor:
    return model.get_normalized_probs(model(tokens), log_probs=True)


def assert_same_training(ours: nn.Module, stock: nn.Module, loss: Callable[[Any], Tensor]) -> float:
    """Compare the loss and gradients of our model and fairseq's, and return the loss."""
    losses = [loss(model) for model in (ours, stock)]
    torch.testing.assert_close(losses[0], losses[1], atol=1e-5, rtol=1e-5)
    for value in losses:
        value.backward()
    gradients = {name: p.grad for name, p in ours.named_parameters()}
    for name, parameter in stock.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-5, rtol=1e-5, msg=name)
    return losses[0].item()


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the cross-entropy of the next token over real positions."""
    logits, inputs = model(**batch)[0], batch["prev_output_tokens"]
    target = inputs.roll(-1, dims=1).masked_fill(inputs.eq(1), 1)
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=1)
