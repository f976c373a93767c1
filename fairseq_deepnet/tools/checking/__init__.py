"""`deepnet check`: measurements of a model, compared with its claim.

`layouts` finds layers, `measure` runs a model and fits its residual connections, `expected` holds
the claim and compares weights with it, `pipeline` compares the rest, `findings` are the report.
"""

from fairseq_deepnet.tools.checking.pipeline import check

__all__ = ["check"]
