"""The parts of the Transformer, which know residual schemes but no fairseq model."""

from .attention import MultiheadAttention
from .compiling import CompiledLayers, call_layer
from .decoding_cache import DecodingCache
from .dropout import Dropout
from .layers import CausalLayer, DecoderLayer, EncoderLayer, LayerShape, TransformerLayer
from .stack import ActivationCheckpointing, run_layers, thriftiest_segment

__all__ = [
    "ActivationCheckpointing",
    "CausalLayer",
    "CompiledLayers",
    "DecoderLayer",
    "DecodingCache",
    "Dropout",
    "EncoderLayer",
    "LayerShape",
    "MultiheadAttention",
    "TransformerLayer",
    "call_layer",
    "run_layers",
    "thriftiest_segment",
]
