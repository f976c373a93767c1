"""Functions of our own around those of fairseq, which has no hooks at these places."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

Around = TypeVar("Around", bound=Callable[..., Any])


def wrap(owner: Any, name: str) -> Callable[[Around], Around]:
    """Let `around(original, *args)` stand for a function of a module, class or object.

    To be used as a decorator of `around`. The original of a class's method takes `self`.
    """

    def replace(around: Around) -> Around:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        setattr(owner, name, wrapped)
        return around

    return replace
