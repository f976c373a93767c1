"""Parameters of which some are tried by default and the rest by `scripts/test.sh --all`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_but(few: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Parameters for pytest: those of `few` as they are, the others marked as slow."""
    return [
        value if value in few else pytest.param(value, marks=pytest.mark.slow) for value in values
    ]
