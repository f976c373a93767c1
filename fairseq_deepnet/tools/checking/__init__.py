"""`deepnet check`: measure a model and compare it with the residual scheme that it claims.

`layouts` finds the layers, `measure` runs the model and fits its residual connections, `pipeline`
compares weights and fits with the claimed scheme, and `findings` contains the report.
"""

from fairseq_deepnet.tools.checking.pipeline import check

__all__ = ["check"]
