"""fairseq_deepnet: very deep Transformers for fairseq (DeepNet, arXiv 2203.00555)."""

from . import compat

compat.apply()

from . import models  # noqa: E402

__all__ = ["models"]
