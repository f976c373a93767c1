"""`deepnet check`: compare measurements of a model with its claim.

`layouts` finds the layers, `measure` runs the model and fits its residual connections, `pipeline`
compares both with the claim, and `findings` is the report.
"""

from fairseq_deepnet.tools.checking.pipeline import check

__all__ = ["check"]
