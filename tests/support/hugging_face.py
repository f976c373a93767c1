"""transformers, where it is installed."""

from __future__ import annotations

import sys
from typing import Any

import pytest


def import_transformers() -> Any:
    """Return the package; the tests of the module that calls this are skipped without it.

    Most of its models import torchaudio if it is there, which fairseq brings, in whatever build:
    one that was built for another torch than the installed one is left out.
    """
    try:
        import torchaudio  # noqa: F401
    except (ImportError, OSError):
        sys.modules["torchaudio"] = None  # type: ignore[assignment]
    return pytest.importorskip("transformers", reason="needs the extra huggingface")
