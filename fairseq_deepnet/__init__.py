"""fairseq_deepnet: very deep Transformers for fairseq (DeepNet, arXiv 2203.00555).

Importing it tells fairseq of all that is here. Two callers are spared fairseq and torch, seconds to
import and much memory: `deepnet translate`, for which they are loaded only if the model needs them,
and the supervisor of a training.
"""

import functools
import itertools
import sys
from collections.abc import Sequence
from pathlib import PurePath


@functools.cache
def register() -> None:
    """Mend what has to be mended in fairseq, and register criterions, models and optimisers."""
    from . import compat

    compat.apply()

    from . import criterions, models, optim, preemption  # noqa: F401
    from .models import other_scheme
    from .monitoring import trainer
    from .observers import build_observers

    other_scheme.install()
    trainer.install(build_observers)
    preemption.listen()


def is_translate(words: Sequence[str]) -> bool:
    """Whether a process's own command line is that of `deepnet translate`.

    Not its sys.argv: processes that it starts inherit that, and register as they need to.
    """
    commands = {"deepnet", f"{__name__}.cli"}
    return any(
        PurePath(word).name in commands and after == "translate"
        for word, after in itertools.pairwise(words)
    )


def is_supervisor(words: Sequence[str]) -> bool:
    """Whether a process's own command line is that of the supervisor of a training."""
    return f"{__name__}.training.supervisor" in words


if not (is_translate(sys.orig_argv) or is_supervisor(sys.orig_argv)):
    register()

__all__ = ["register"]
