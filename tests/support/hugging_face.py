"""Import of transformers, if it is installed."""

from __future__ import annotations

import sys
from typing import Any

import pytest


def import_transformers() -> Any:
    """Return transformers; if it is not installed, skip the calling test module.

    Most models of transformers import torchaudio, which fairseq requires. A build of torchaudio for
    another torch is hidden.
    """
    try:
        import torchaudio  # noqa: F401
    except (ImportError, OSError):
        sys.modules["torchaudio"] = None  # type: ignore[assignment]
    return pytest.importorskip("transformers", reason="needs the extra huggingface")
