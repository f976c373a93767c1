"""Options of fairseq-train that do not change a run's numerical results.

A run that resumes with a different value of such an option is still the same experiment.
"""

from collections.abc import Mapping
from typing import Any, Final

STOCK_NAMES: Final[Mapping[str, str]] = {
    "chunked_label_smoothed_cross_entropy": "label_smoothed_cross_entropy",
    "chunked_cross_entropy": "cross_entropy",
    "fused_adam": "adam",
}
"""fairseq's name for each of our criterions and optimisers."""
HARMLESS: Final = frozenset(
    {
        *("log_interval", "log_format", "num_workers", "no_progress_bar"),
        *("checkpoint_activations", "checkpoint_activations_every", "checkpoint_every"),
        "offload_activations",
    }
)
"""Options that change only speed, memory or logs."""
MAY_DIFFER: Final = HARMLESS | {"monitor_interval", "monitor", "on_divergence", "fallbacks"}
"""Options that may differ when a run resumes, and between the seeds of a system."""


def in_stock_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return fairseq-train options in which our criterions and optimisers have fairseq's names."""
    return {
        name: STOCK_NAMES.get(value, value) if name in ("criterion", "optimizer") else value
        for name, value in options.items()
    }
