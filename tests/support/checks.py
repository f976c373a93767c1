"""Sound and broken models for `deepnet check`, and the check as the tests call it."""

from typing import Any

import torch

from fairseq_deepnet.anatomy import find_stacks
from fairseq_deepnet.tools.checking.findings import Findings, StackFindings
from fairseq_deepnet.tools.checking.pipeline import compare, make_claim
from tests.support.models import build_model

N, M = 6, 4
SIZE: dict[str, Any] = {"encoder_layers": N, "decoder_layers": M}
SIZE |= {f"{side}_embed_dim": 64 for side in ("encoder", "decoder")}
SIZE |= {f"{side}_ffn_embed_dim": 128 for side in ("encoder", "decoder")}
VALUE_PATH = ("v_proj", "out_proj", "fc1", "fc2")


def model_of(arch: str = "deepnet_transformer", seed: int = 1, **options: Any) -> Any:
    """Build a 6L-4L model of width 64, whose standard deviations are accurate to 2 %."""
    return build_model(arch, seed, **(SIZE | options))


def examine(model: Any, claim: str | None = None) -> Findings:
    """Check a model, using the arguments that it stores."""
    torch.manual_seed(5)
    stacks = find_stacks(model)
    claimed = make_claim(model, getattr(model, "args", None), stacks, claim)
    return compare(model, stacks, claimed, None, "a model")


def sentences(findings: Findings) -> str:
    """Return all faults, one per line."""
    return "\n".join(fault.sentence() for fault in findings.faults)


def facts(side: StackFindings) -> dict[str, str]:
    """Return a stack's measured properties by name."""
    return {fact.name: fact.measured for fact in side.facts}


def kinds(findings: Findings) -> set[str]:
    return {fault.kind for fault in findings.faults}


def stock_layers_with(
    model: Any, factors: dict[str, tuple[float, float]], pre: bool = False
) -> Any:
    """Return fairseq's Transformer with the weights of `model` and other residual connections.

    Args:
        factors: side -> (a, c) of the sum a x + c G(x)
        pre: LayerNorm before the branch
    """
    before = {"encoder_normalize_before": pre, "decoder_normalize_before": pre}
    stock = model_of("transformer", **before)
    stock.load_state_dict(model.state_dict(), strict=not pre)
    for side, (a, c) in factors.items():
        for layer in getattr(stock, side).layers:
            layer.residual_connection = lambda branch, x, a=a, c=c: a * x + c * branch
    return stock
