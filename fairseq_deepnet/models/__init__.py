"""Models and their named shapes. Importing this registers all that is here.

fairseq does so for a user-dir. What is mended in fairseq comes first: the rest builds on it.
"""

from .. import compat

compat.apply()

# ruff: noqa: E402
from .. import criterions, optim, preemption
from ..monitoring import trainer
from ..observers import build_observers
from ..sharding import trainer as sharded_trainer
from . import other_scheme
from .deepnet_masked_lm import DeepNetMaskedLM
from .deepnet_transformer import DeepNetTransformerModel
from .deepnet_transformer_lm import DeepNetTransformerLM

other_scheme.install()
sharded_trainer.install()  # before the observers, which are to see the model as it is trained
trainer.install(build_observers)
preemption.listen()

__all__ = [
    "DeepNetMaskedLM",
    "DeepNetTransformerLM",
    "DeepNetTransformerModel",
    "criterions",
    "optim",
]
