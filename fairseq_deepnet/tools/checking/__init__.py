"""`deepnet check`: is a model what it is claimed to be? Measured, not read off its attributes.

`measure` runs a model and fits its residual connections, `claims` says what is expected, `weights`
and `compare` report where the two differ, as `findings`; they know torch modules alone. `command`
is the command line, `audit` the function `check` for models of other houses.
"""

from fairseq_deepnet.tools.checking.audit import check

__all__ = ["check"]
