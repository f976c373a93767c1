"""The parts of the Transformer, which know residual schemes but no fairseq model."""

from .attention import MultiheadAttention
from .decoding_cache import DecodingCache
from .layers import CausalLayer, DecoderLayer, EncoderLayer, LayerShape, TransformerLayer
from .stack import ActivationCheckpointing, run_layers

__all__ = [
    "ActivationCheckpointing",
    "CausalLayer",
    "DecoderLayer",
    "DecodingCache",
    "EncoderLayer",
    "LayerShape",
    "MultiheadAttention",
    "TransformerLayer",
    "run_layers",
]
