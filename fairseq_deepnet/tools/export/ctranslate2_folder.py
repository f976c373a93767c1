"""CTranslate2 export: a self-contained folder for the translation of raw text.

CTranslate2's own fairseq converter needs the fairseq task and supports only fairseq's models. This
module copies tensors from the folded state dict instead.
"""

import shutil
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from ctranslate2.converters import Converter
from ctranslate2.specs import TransformerSpec
from ctranslate2.specs.common_spec import Activation, LinearSpec
from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec
from numpy.typing import NDArray
from torch import Tensor

from fairseq_deepnet.tools.corpora.folder import DataFolder
from fairseq_deepnet.tools.export import BLANK
from fairseq_deepnet.tools.export.folding import position_table
from fairseq_deepnet.tools.export.stock import OUTPUT, Vocabularies, stock_translator
from fairseq_deepnet.tools.trained_model import TrainedModel

ENGINE: Final = "CTranslate2"
ACTIVATIONS: Final = {
    "relu": Activation.RELU,
    "gelu": Activation.GELU,
    "gelu_accurate": Activation.GELUTanh,
    "gelu_fast": Activation.GELUTanh,
    "tanh": Activation.Tanh,
}
"""Supported activation functions: fairseq's name -> CTranslate2's constant."""


def write_folder(
    part: Path,
    model: TrainedModel,
    data: DataFolder,
    state: Mapping[str, Any],
    record: Mapping[str, Any],
) -> dict[str, Any]:
    """Write the model and its subword models, and return the entries to add to export.json."""
    weights, args, vocabularies = stock_translator(model, data, state, ENGINE, ACTIVATIONS)
    quantization, tokens = record["request"]["quantization"], vocabularies.tokens
    converter = StockConverter(weights, args, vocabularies)
    converter.convert(str(part), quantization=quantization, force=True)
    subwords = {language: data.subword_model(language) for language in data.languages}
    for path in set(subwords.values()):
        shutil.copy(path, part)
    return {
        "quantization": quantization,
        "source": None if tokens else data.languages[0],
        "target": None if tokens else data.languages[1],
        "languages": data.languages,
        "language_tokens": tokens,
        "subwords": {language: path.name for language, path in subwords.items()},
        "lowercase": data.is_lowercase,
        "max_positions": [args.max_source_positions, args.max_target_positions],
    }


class _DeepSpec(TransformerSpec):
    """Specification that looks for equal parameters only among the embedding tables.

    By default, CTranslate2 compares all pairs of parameters, which is slow for thousands of layers.
    """

    def _alias_variables(self) -> None:
        table = self.decoder.embeddings
        for other in (self.decoder.projection, self.encoder.embeddings[0]):
            if other.weight.equal(table.weight):
                other.weight = "decoder/embeddings/weight"


class StockConverter(Converter):
    """CTranslate2 converter for the weights and arguments of fairseq's `transformer`."""

    def __init__(
        self, weights: Mapping[str, Tensor], args: Namespace, vocabularies: Vocabularies
    ) -> None:
        self.weights, self.args, self.vocabularies = weights, args, vocabularies

    def _load(self) -> TransformerSpec:
        encoder = TransformerEncoderSpec(**self.shape("encoder"))
        self.fill(encoder, encoder.embeddings[0], "encoder")
        has_no_norm = bool(getattr(self.args, "no_decoder_final_norm", False))
        decoder = TransformerDecoderSpec(**self.shape("decoder"), no_final_norm=has_no_norm)
        self.fill(decoder, decoder.embeddings, "decoder")
        decoder.projection.weight = self.array(OUTPUT)
        if (name := "decoder.project_out_dim.weight") in self.weights:
            # --decoder-output-dim: two consecutive linear maps are one
            decoder.projection.weight = decoder.projection.weight @ self.array(name)
        spec = _DeepSpec(encoder, decoder)
        source, target = (
            [BLANK if symbol == "<pad>" else symbol for symbol in symbols]
            for symbols in self.vocabularies[:2]
        )
        spec.register_source_vocabulary(source)
        spec.register_target_vocabulary(target)
        # in fairseq, </s> starts translations and ends source sentences
        spec.config.decoder_start_token = spec.config.eos_token
        spec.config.add_source_eos = True
        return spec

    def shape(self, side: str) -> dict[str, Any]:
        """Return the arguments for the specification of one side (encoder or decoder)."""
        layers = [name for name in self.weights if name.startswith(f"{side}.layers.")]
        return {
            "num_layers": sum(name.endswith(".fc1.weight") for name in layers),
            "num_heads": getattr(self.args, f"{side}_attention_heads"),
            "pre_norm": bool(getattr(self.args, f"{side}_normalize_before")),
            "activation": ACTIVATIONS[self.args.activation_fn],
            "layernorm_embedding": f"{side}.layernorm_embedding.weight" in self.weights,
        }

    def fill(self, spec: Any, embeddings: Any, side: str) -> None:
        """Copy one side's embeddings, positions, layers and stack-level LayerNorms to `spec`."""
        embeddings.weight = self.array(f"{side}.embed_tokens.weight")
        width = float(getattr(self.args, f"{side}_embed_dim"))
        spec.scale_embeddings = 1.0 if self.args.no_scale_embedding else width**0.5
        end = "source" if side == "encoder" else "target"
        longest = getattr(self.args, f"max_{end}_positions")
        positions = position_table(self.weights, self.args, side, longest)
        spec.position_encodings.encodings = positions.contiguous().numpy()
        for name in ("layernorm_embedding", "layer_norm"):
            if f"{side}.{name}.weight" in self.weights:
                self.norm(getattr(spec, name), f"{side}.{name}")
        for index, layer in enumerate(spec.layer):
            start = f"{side}.layers.{index}"
            attention = layer.self_attention
            self.linear(attention.linear[0], *(f"{start}.self_attn.{x}_proj" for x in "qkv"))
            self.linear(attention.linear[1], f"{start}.self_attn.out_proj")
            self.norm(attention.layer_norm, f"{start}.self_attn_layer_norm")
            if side == "decoder":
                cross = layer.attention
                self.linear(cross.linear[0], f"{start}.encoder_attn.q_proj")
                self.linear(cross.linear[1], *(f"{start}.encoder_attn.{x}_proj" for x in "kv"))
                self.linear(cross.linear[2], f"{start}.encoder_attn.out_proj")
                self.norm(cross.layer_norm, f"{start}.encoder_attn_layer_norm")
            self.linear(layer.ffn.linear_0, f"{start}.fc1")
            self.linear(layer.ffn.linear_1, f"{start}.fc2")
            self.norm(layer.ffn.layer_norm, f"{start}.final_layer_norm")

    def norm(self, spec: Any, name: str) -> None:
        """Set the gain and the bias of a LayerNorm."""
        spec.gamma, spec.beta = self.array(f"{name}.weight"), self.array(f"{name}.bias")

    def linear(self, spec: LinearSpec, *names: str) -> None:
        """Set a linear map to the concatenation of one or more maps with the same input."""
        spec.weight = np.concatenate([self.array(f"{name}.weight") for name in names])
        if f"{names[0]}.bias" in self.weights:
            spec.bias = np.concatenate([self.array(f"{name}.bias") for name in names])

    def array(self, name: str) -> NDArray[np.float32]:
        """Return a parameter as a float32 array."""
        return self.weights[name].float().contiguous().numpy()
