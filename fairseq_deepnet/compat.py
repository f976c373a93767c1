"""What fairseq 0.12 needs on today's Python and torch, and nothing more."""

import argparse
import importlib.metadata

import torch

REQUIRED = "fairseq-fixed==0.12.3.1"


def apply() -> None:
    """Check fairseq and let torch load its checkpoints."""
    require_fairseq()
    torch.serialization.add_safe_globals([argparse.Namespace])


def require_fairseq() -> None:
    importlib.metadata.version("fairseq-fixed")
