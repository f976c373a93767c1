"""What a monitored run measures: names, units, reductions; the table in docs/monitoring.md.

"Paper" is arXiv 2203.00555. B, T, C are batch, length and channels; a token is a position that is
no padding. Norms are L2 norms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Level(StrEnum):
    """What a quantity has one value of."""

    MODEL = "model"  # one number
    STACK = "stack"  # one number a side
    PART = "part"  # one number a layer, for each part of a layer (sublayer, group of weights)


@dataclass(frozen=True)
class Quantity:
    """One row of the table.

    Arguments:
        name: in --monitor, monitor.jsonl, TensorBoard and figures
        level: how many values there are
        unit: of each
        when: at which moment of the update it is taken
        meaning: what it is, with its reduction
        source: where the paper has it
    """

    name: str
    level: Level
    unit: str
    when: str
    meaning: str
    source: str = ""


QUANTITIES: Final[dict[str, Quantity]] = {
    quantity.name: quantity
    for quantity in (
        Quantity(
            "gradient_norm",
            Level.PART,
            "loss / parameter",
            "before clipping",
            "norm of the gradient of all parameters of a layer (part `layer`) and of each of its"
            " sublayers (`self_attn`, `encoder_attn`, `ffn`), their LayerNorms included",
            "Fig. 3(a, b), Fig. 4(d)",
        ),
        Quantity(
            "weight_gradient_norm",
            Level.PART,
            "loss / parameter",
            "before clipping",
            "norm of the gradient of groups of weight matrices, without biases: query and key"
            " (`self_attn.qk`, `encoder_attn.qk`), value and output (`self_attn.vo`,"
            " `encoder_attn.vo`), feed-forward (`ffn`)",
            "Section 4.2: q and k do not set the size of a branch's output",
        ),
        Quantity(
            "embedding_gradient_norm",
            Level.STACK,
            "loss / parameter",
            "before clipping",
            "norm of the gradient of a side's table of words; the same number twice where both"
            " sides share one table",
        ),
        Quantity(
            "branch_norm",
            Level.PART,
            "activation",
            "forward",
            "norm over C of a branch's output G(x), before dropout and NormFormer's second norm,"
            " mean over tokens",
            "Section 3",
        ),
        Quantity(
            "residual_norm",
            Level.PART,
            "activation",
            "forward",
            "norm over C of the stream x that enters a sublayer, before any weight on it (in"
            " LN(alpha x + G(x)): of x; R-Fixup: of x + b), mean over tokens",
            "Section 3",
        ),
        Quantity(
            "layer_norm_input",
            Level.PART,
            "activation",
            "forward",
            "norm over C of what enters each LayerNorm (Post-LN: alpha x + G(x) after dropout,"
            " Pre-LN: x), mean over tokens; parts are the sublayers, `final` and `embedding` for a"
            " stack's own, `combination` for DLCL's, a path in the layer for NormFormer's",
            "Fig. 4(b, c)",
        ),
        Quantity(
            "layer_norm_gradient",
            Level.PART,
            "1 / activation",
            "backward",
            "gradient through each LayerNorm: norm of the loss's gradient at its input over that at"
            " its output, both over all tokens; the theory has sqrt(C) / layer_norm_input",
            "Section 3, after Xiong et al. 2020",
        ),
        Quantity(
            "attention_entropy",
            Level.PART,
            "nats",
            "probe",
            "entropy of an attention's weights; mean over heads and queries of the probe batch",
        ),
        Quantity(
            "model_update",
            Level.MODEL,
            "activation",
            "probe",
            "norm over C of F(x, theta_i) - F(x, theta_0), mean over the probe's tokens: F is the"
            " output of the top layer (after a final LayerNorm), theta_0 the initial parameters",
            "Fig. 4(a), Fig. 5",
        ),
        Quantity(
            "step_update",
            Level.MODEL,
            "activation",
            "probe",
            "norm over C of F(x, theta_i) - F(x, theta_{i-1}), mean over the probe's tokens: what"
            " one update does",
            "Section 4.3",
        ),
        Quantity(
            "update_bound",
            Level.MODEL,
            "activation",
            "after the step",
            "right side of Theorem 4.2 (one stack) or 4.3 (two) for the actual weights, with"
            " theta_0 and theta_i: sqrt(C) times the sum over sublayers of sqrt(v^2 + w^2) / alpha"
            " * |theta*_i - theta_i|; only where LayerNorm follows the sum",
            "Theorems 4.2 and 4.3",
        ),
        Quantity(
            "step_bound",
            Level.MODEL,
            "activation",
            "after the step",
            "the bound of one update: as update_bound, with theta_{i-1} for theta_0",
            "Theorems 4.2 and 4.3",
        ),
        Quantity(
            "parameter_update_ratio",
            Level.PART,
            "none",
            "after the step",
            "norm of an update of a layer's parameters over the norm of these parameters before it"
            " (part `layer`)",
        ),
    )
}
"""Name -> quantity, in the order of the documentation."""

EVERYTHING: Final = "all"


def parse_quantities(text: str) -> tuple[str, ...]:
    """Return the names in "a,b,c", or all of them for "all"; ValueError names what is unknown."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if EVERYTHING in names:
        return tuple(QUANTITIES)
    unknown = [name for name in names if name not in QUANTITIES]
    if unknown or not names:
        raise ValueError(
            f"--monitor {text!r}: unknown {', '.join(unknown) or 'empty list'}; choose {EVERYTHING}"
            f" or some of {', '.join(QUANTITIES)}, separated by commas"
        )
    return names


def markdown_table(names: Sequence[str] = tuple(QUANTITIES)) -> str:
    """Return the table as the documentation shows it."""
    lines = ["| name | a value per | unit | taken | what | paper |", "|---|---|---|---|---|---|"]
    for name in names:
        row = QUANTITIES[name]
        per = {"model": "model", "stack": "side", "part": "layer and part"}[row.level.value]
        lines.append(
            f"| `{name}` | {per} | {row.unit} | {row.when} | {row.meaning} | {row.source} |"
        )
    return "\n".join(lines)
