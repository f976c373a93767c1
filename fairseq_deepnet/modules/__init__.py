"""Transformer modules, which depend on residual schemes but on no fairseq model."""

from .attention import MultiheadAttention
from .decoding import Decoding
from .dropout import Dropout
from .joined_projection import lay_out
from .layers import (
    CausalLayer,
    DecoderLayer,
    EncoderLayer,
    LayerShape,
    TransformerLayer,
    compile_layers,
)
from .layers_at_inference import UnpaddedLayer
from .positions import TargetMask, Unpadded, additive, key_mask, target_mask
from .stack import ActivationCheckpointing, run_layers, thriftiest_segment

__all__ = [
    "ActivationCheckpointing",
    "CausalLayer",
    "DecoderLayer",
    "Decoding",
    "Dropout",
    "EncoderLayer",
    "LayerShape",
    "MultiheadAttention",
    "TargetMask",
    "TransformerLayer",
    "Unpadded",
    "UnpaddedLayer",
    "additive",
    "compile_layers",
    "key_mask",
    "lay_out",
    "run_layers",
    "target_mask",
    "thriftiest_segment",
]
