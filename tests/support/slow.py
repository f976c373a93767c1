"""Test parameters of which some run only with `scripts/test.sh --all`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_but(few: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Return `values` as parameters for pytest, with those not in `few` marked as slow."""
    return [
        value if value in few else pytest.param(value, marks=pytest.mark.slow) for value in values
    ]
