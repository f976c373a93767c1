"""fairseq_deepnet: very deep Transformers for fairseq (DeepNet, arXiv 2203.00555)."""

from . import compat

compat.apply()

from . import criterions, models, optim  # noqa: E402
from .monitoring import trainer  # noqa: E402
from .observers import build_observers  # noqa: E402

trainer.install(build_observers)

__all__ = ["criterions", "models", "optim"]
