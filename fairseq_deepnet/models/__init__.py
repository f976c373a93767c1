"""Models and their named architectures. Importing this package registers them with fairseq.

fairseq imports this package when it loads --user-dir. All other modules rely on the repairs of
`compat`, which are applied first.
"""

from .. import compat

compat.apply()

# ruff: noqa: E402
from .. import trainer
from ..criterions import cross_entropy
from ..optim import fused_adam
from ..sharding import trainer as sharded_trainer
from .deepnet_masked_lm import DeepNetMaskedLM
from .deepnet_transformer import DeepNetTransformerModel
from .deepnet_transformer_lm import DeepNetTransformerLM

trainer.install()
sharded_trainer.install()

__all__ = [
    "DeepNetMaskedLM",
    "DeepNetTransformerLM",
    "DeepNetTransformerModel",
    "cross_entropy",
    "fused_adam",
]
