"""Models to be checked, sound and broken, and the check as the tests call it."""

from typing import Any

import torch
from torch import Tensor, nn

from fairseq_deepnet.anatomy import find_stacks
from fairseq_deepnet.tools.checking.expected import make_claim
from fairseq_deepnet.tools.checking.findings import Findings, StackFindings
from fairseq_deepnet.tools.checking.pipeline import compare
from tests.support.models import build_model

N, M = 6, 4
VALUE_PATH = ("v_proj", "out_proj", "fc1", "fc2")


def model_of(arch: str = "deepnet_transformer", seed: int = 1, **options: Any) -> Any:
    """A model 64 wide and 6L-4L, so that its standard deviations are known to 2 %."""
    size: dict[str, Any] = {"encoder_layers": N, "decoder_layers": M}
    for side in ("encoder", "decoder"):
        size |= {f"{side}_embed_dim": 64, f"{side}_ffn_embed_dim": 128}
    return build_model(arch, seed, **(size | options))


def examine(model: Any, claim: str | None = None) -> Findings:
    """The check, with the arguments that the model keeps."""
    torch.manual_seed(5)
    stacks = find_stacks(model)
    claimed = make_claim(model, getattr(model, "args", None), stacks, claim)
    return compare(model, stacks, claimed, None, "a model")


def sentences(found: Findings) -> str:
    """All faults."""
    return "\n".join(fault.sentence() for fault in found.faults)


def facts(side: StackFindings) -> dict[str, str]:
    """Measured properties of a stack, by name."""
    return {fact.name: fact.measured for fact in side.facts}


def kinds(found: Findings) -> set[str]:
    """What kinds of faults there are."""
    return {fault.kind for fault in found.faults}


def scale_weights(stack: Any, names: tuple[str, ...], factor: float) -> None:
    """Multiply the weights (no biases) of the linear maps so named in a whole stack."""
    with torch.no_grad():
        for name, module in stack.layers.named_modules():
            if isinstance(module, nn.Linear) and name.rpartition(".")[2] in names:
                module.weight.mul_(factor)


def stock_layers_with(ours: Any, joins: dict[str, Any], pre: bool = False) -> Any:
    """fairseq's own Transformer with the weights of `ours` and other residual connections.

    Args:
        joins: side -> function of (branch, residual), as fairseq's `residual_connection`.
        pre: LayerNorm before the branch.
    """
    before = {"encoder_normalize_before": pre, "decoder_normalize_before": pre}
    stock = model_of("transformer", **before)
    stock.load_state_dict(ours.state_dict(), strict=not pre)
    for side, join in joins.items():
        for layer in getattr(stock, side).layers:
            layer.residual_connection = join
    return stock


def scaled_residual(alpha: float) -> Any:
    """alpha x + G(x)."""

    def join(branch: Tensor, residual: Tensor) -> Tensor:
        return alpha * residual + branch

    return join


def scaled_branch(alpha: float) -> Any:
    """x + alpha G(x)."""

    def join(branch: Tensor, residual: Tensor) -> Tensor:
        return residual + alpha * branch

    return join
