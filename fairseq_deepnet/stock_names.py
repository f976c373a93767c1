"""Options of fairseq-train that change no number.

A training that was started with one value may resume with another; it is the same experiment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

STOCK_NAMES: Final[Mapping[str, str]] = {
    "chunked_label_smoothed_cross_entropy": "label_smoothed_cross_entropy",
    "chunked_cross_entropy": "cross_entropy",
    "fused_adam": "adam",
}
"""Our criterions and optimisers -> fairseq's."""
HARMLESS: Final = frozenset(
    {
        *("log_interval", "log_format", "num_workers", "no_progress_bar"),
        *("checkpoint_activations", "checkpoint_activations_every", "checkpoint_every"),
        "offload_activations",
    }
)
"""Options that change only speed, memory or logs."""
_OPTIONS: Final = ("criterion", "optimizer")


def in_stock_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of fairseq-train with fairseq's criterion and optimiser for ours."""
    return {
        name: STOCK_NAMES.get(value, value) if name in _OPTIONS else value
        for name, value in options.items()
    }
