"""Models and their named shapes, registered with fairseq on import."""

from .deepnet_masked_lm import DeepNetMaskedLM
from .deepnet_transformer import DeepNetTransformerModel
from .deepnet_transformer_lm import DeepNetTransformerLM

__all__ = ["DeepNetMaskedLM", "DeepNetTransformerLM", "DeepNetTransformerModel"]
