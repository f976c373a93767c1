"""`deepnet check`: is a model what it is claimed to be? Measured, not read off its attributes.

`measure` runs a model and fits its residual connections, `weights` says what is expected and
compares weights with it, `compare` all else; `findings` are what they report. `check_command` is
the command line, `audit` the function `check` for models of other houses.
"""

from fairseq_deepnet.tools.checking.audit import check

__all__ = ["check"]
