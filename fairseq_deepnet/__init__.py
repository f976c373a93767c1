"""fairseq_deepnet: very deep Transformers for fairseq (DeepNet, arXiv 2203.00555)."""

from . import compat

compat.apply()

from . import models  # noqa: E402
from .monitoring import attach, trainer  # noqa: E402

trainer.install(attach.build_observers)

__all__ = ["models"]
