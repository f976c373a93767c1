"""What fairseq 0.12 needs on today's Python and torch, and nothing more."""

import argparse
import importlib.metadata
import logging
import warnings
from typing import Any

import numpy as np
import torch

from .errors import show_in_one_line

FAIRSEQ = "fairseq-fixed==0.12.3.1"  # setup.py pins the same release

# Warnings about fairseq's own code that its users can do nothing about: category, start of the
# message.
KNOWN_WARNINGS: tuple[tuple[type[Warning], str], ...] = (
    (FutureWarning, r"`torch\.cuda\.amp\.autocast"),
    (FutureWarning, r"`torch\.cuda\.amp\.GradScaler"),
    (UserWarning, r".*pkg_resources is deprecated"),
    (DeprecationWarning, r".*pkg_resources"),
    (UserWarning, r"\s*'config' is validated against ConfigStore schema"),
    (UserWarning, r".*torchaudio"),
)


def apply() -> None:
    """Everything below, once, when the plugin is imported."""
    require_fairseq()
    torch.serialization.add_safe_globals(list(checkpoint_globals()))
    for category, message in KNOWN_WARNINGS:
        warnings.filterwarnings("ignore", message=message, category=category)
    # fairseq imports every task it has, and each speaks of its optional packages.
    logging.getLogger("fairseq.tasks").setLevel(logging.WARNING)
    show_in_one_line()


def require_fairseq() -> None:
    """Refuse a fairseq that is known to compute something else; ImportError says what to install.

    fairseq 0.12.2 bypasses a layer's residual connection at inference (its fast path), so that
    alpha is silently lost; and it cannot be imported on Python 3.11. Its repaired release has
    another name on PyPI.
    """
    try:
        found = importlib.metadata.version("fairseq-fixed")
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(
            "fairseq_deepnet needs fairseq-fixed, and another fairseq (or none) is installed;"
            f" run: pip uninstall -y fairseq; pip install --no-build-isolation {FAIRSEQ}"
        ) from None
    if f"fairseq-fixed=={found}" != FAIRSEQ:
        raise ImportError(
            f"fairseq_deepnet is tested with {FAIRSEQ}, found {found};"
            f" run: pip install --no-build-isolation {FAIRSEQ}"
        )


def checkpoint_globals() -> tuple[Any, ...]:
    """What fairseq's checkpoints hold beyond torch's own classes, for the weights-only loader.

    Found by torch.serialization.get_unsafe_globals_in_checkpoint on checkpoints of every optimiser,
    scheduler and configuration style: the model's Namespace, and, with --eval-bleu, the integer
    arrays of the BLEU counts in the meters. Any other class stays refused.
    """
    array_rebuilder = np.zeros(0).__reduce__()[0]  # numpy moved it between its versions
    dtypes = {type(np.dtype(kind)) for kind in (np.int64, np.float64)}
    return argparse.Namespace, np.ndarray, np.dtype, array_rebuilder, *dtypes
