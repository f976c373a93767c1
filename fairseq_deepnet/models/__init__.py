"""Models and their named shapes, registered with fairseq on import."""

from .deepnet_transformer import DeepNetTransformerModel

__all__ = ["DeepNetTransformerModel"]
