"""CTranslate2 export: a self-contained folder that translates raw text.

CTranslate2's own converter rebuilds the task and the model and supports only fairseq's models. Here
tensors are copied directly from the (folded) state dict.
"""

from __future__ import annotations

import dataclasses
import shutil
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from ctranslate2.converters import Converter
from ctranslate2.converters.utils import fuse_linear
from ctranslate2.specs import TransformerSpec
from ctranslate2.specs.common_spec import Activation, LinearSpec
from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec
from numpy.typing import NDArray
from torch import Tensor

from fairseq_deepnet.records import write_record
from fairseq_deepnet.tools.corpora.build import folder_digests
from fairseq_deepnet.tools.corpora.folder import DataFolder
from fairseq_deepnet.tools.export import BLANK, RECORD
from fairseq_deepnet.tools.export.folding import position_table
from fairseq_deepnet.tools.export.vocabularies import (
    Vocabularies,
    stock_translator,
    subword_files,
    subword_kind,
)
from fairseq_deepnet.tools.trained_model import TrainedModel

ENGINE: Final = "CTranslate2"
ACTIVATIONS: Final = {
    "relu": Activation.RELU,
    "gelu": Activation.GELU,
    "gelu_accurate": Activation.GELUTanh,
    "gelu_fast": Activation.GELUTanh,
    "tanh": Activation.Tanh,
}
"""fairseq's names of the activation functions that CTranslate2 supports."""


def write_folder(
    part: Path,
    model: TrainedModel,
    data: DataFolder,
    state: dict[str, Any],
    quantization: str,
    record: dict[str, Any],
) -> None:
    """Write the folder.

    Raises:
        ValueError: for a model that cannot be folded or that CTranslate2 cannot compute.
    """
    weights, stock, vocabularies = stock_translator(model, data, state, ENGINE, ACTIVATIONS)
    converter = StockConverter(weights, stock, vocabularies)
    converter.convert(str(part), quantization=quantization)
    subwords, tokens = subword_files(data), vocabularies.tokens
    for path in sorted({*subwords.values()}):
        shutil.copy(path, part)
    names = {language: path.name for language, path in subwords.items()}
    facts = record | {
        "quantization": quantization,
        "source": None if tokens else data.languages[0],
        "target": None if tokens else data.languages[1],
        "languages": data.languages,
        "language_tokens": dataclasses.asdict(tokens) if tokens else None,
        "subwords": {"kind": subword_kind(data), "models": names},
        "lowercase": data.is_lowercase,
        "max_positions": [stock.max_source_positions, stock.max_target_positions],
    }
    write_record(part / RECORD, facts | {"files": folder_digests(part)})


class StockConverter(Converter):
    """CTranslate2's converter interface for tensors in memory.

    Args:
        weights: state dict of fairseq's stock `transformer`.
        args: its arguments.
        vocabularies: its dictionaries.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], args: Namespace, vocabularies: Vocabularies
    ) -> None:
        self.weights, self.args, self.vocabularies = weights, args, vocabularies

    def _load(self) -> TransformerSpec:
        spec = _DeepSpec(
            _Side(self.weights, self.args, "encoder").encoder(),
            _Side(self.weights, self.args, "decoder").decoder(),
        )
        spec.register_source_vocabulary(_symbols(self.vocabularies.source))
        spec.register_target_vocabulary(_symbols(self.vocabularies.target))
        # fairseq starts a translation with </s>, and ends a source sentence with it
        spec.config.decoder_start_token = spec.config.eos_token
        spec.config.add_source_eos = True
        return spec


class _DeepSpec(TransformerSpec):
    """Return quickly, as CTranslate2's version is slow for thousands of layers."""

    def _alias_variables(self) -> None:
        """Alias only equal embedding tables, where CTranslate2 compares all pairs of parameters."""
        table = self.decoder.embeddings
        for other in (self.decoder.projection, self.encoder.embeddings[0]):
            if other.weight.equal(table.weight):
                other.weight = "decoder/embeddings/weight"


def _symbols(vocabulary: Sequence[str]) -> list[str]:
    return [BLANK if symbol == "<pad>" else symbol for symbol in vocabulary]


class _Side:
    """Fills the specification of one stack."""

    def __init__(self, weights: Mapping[str, Tensor], args: Namespace, side: str) -> None:
        self.weights, self.args, self.side = weights, args, side
        self.width: int = self.option("embed_dim")
        self.layers = sum(
            name.startswith(f"{side}.layers.") and name.endswith(".fc1.weight") for name in weights
        )
        self.shape = {
            "num_layers": self.layers,
            "num_heads": self.option("attention_heads"),
            "pre_norm": bool(self.option("normalize_before")),
            "activation": ACTIVATIONS[args.activation_fn],
            "layernorm_embedding": f"{side}.layernorm_embedding.weight" in weights,
        }

    def option(self, name: str) -> Any:
        """Return an option of this side, --SIDE-NAME."""
        return getattr(self.args, f"{self.side}_{name}")

    def has(self, name: str) -> bool:
        """Return True if the side has this module."""
        return f"{self.side}.{name}.weight" in self.weights

    def array(self, name: str) -> NDArray[np.float32]:
        """Return a parameter in float32."""
        return self.weights[f"{self.side}.{name}"].float().contiguous().numpy()

    def encoder(self) -> TransformerEncoderSpec:
        """Return the complete encoder."""
        spec = TransformerEncoderSpec(**self.shape)
        self.ends(spec, spec.embeddings[0])
        for index, layer in enumerate(spec.layer):
            self.self_attention(layer, index)
            self.feed_forward(layer, index)
        return spec

    def decoder(self) -> TransformerDecoderSpec:
        """Return the complete decoder with the vocabulary projection."""
        spec = TransformerDecoderSpec(
            **self.shape, no_final_norm=bool(getattr(self.args, "no_decoder_final_norm", False))
        )
        self.ends(spec, spec.embeddings)
        # old checkpoints of fairseq's do not name a table twice
        table = "output_projection" if self.has("output_projection") else "embed_tokens"
        spec.projection.weight = self.array(f"{table}.weight")
        if self.has("project_out_dim"):
            # --decoder-output-dim: two maps without anything between them are one
            spec.projection.weight = spec.projection.weight @ self.array("project_out_dim.weight")
        for index, layer in enumerate(spec.layer):
            self.self_attention(layer, index)
            self.cross_attention(layer, index)
            self.feed_forward(layer, index)
        return spec

    def ends(self, spec: Any, embeddings: Any) -> None:
        """Set embeddings, positions, and the norms before and after the layers."""
        embeddings.weight = self.array("embed_tokens.weight")
        spec.scale_embeddings = 1.0 if self.args.no_scale_embedding else float(self.width) ** 0.5
        table = position_table(self.weights, self.args, self.side)
        spec.position_encodings.encodings = table.contiguous().numpy()
        for name in ("layernorm_embedding", "layer_norm"):
            if self.has(name):
                self.norm(getattr(spec, name), name)

    def norm(self, spec: Any, name: str) -> None:
        spec.gamma, spec.beta = self.array(f"{name}.weight"), self.array(f"{name}.bias")

    def linear(self, spec: LinearSpec, name: str) -> None:
        spec.weight = self.array(f"{name}.weight")
        if f"{self.side}.{name}.bias" in self.weights:
            spec.bias = self.array(f"{name}.bias")

    def fused(self, spec: LinearSpec, names: Sequence[str]) -> None:
        """Set several maps of the same input as one map."""
        parts = [LinearSpec() for _ in names]
        for part, name in zip(parts, names, strict=True):
            self.linear(part, name)
        fuse_linear(spec, parts)

    def self_attention(self, layer: Any, index: int) -> None:
        name = f"layers.{index}.self_attn"
        spec = layer.self_attention
        self.fused(spec.linear[0], [f"{name}.{role}_proj" for role in "qkv"])
        self.linear(spec.linear[1], f"{name}.out_proj")
        self.norm(spec.layer_norm, f"{name}_layer_norm")

    def cross_attention(self, layer: Any, index: int) -> None:
        name = f"layers.{index}.encoder_attn"
        spec = layer.attention
        self.linear(spec.linear[0], f"{name}.q_proj")
        self.fused(spec.linear[1], [f"{name}.{role}_proj" for role in "kv"])
        self.linear(spec.linear[2], f"{name}.out_proj")
        self.norm(spec.layer_norm, f"{name}_layer_norm")

    def feed_forward(self, layer: Any, index: int) -> None:
        name = f"layers.{index}"
        self.linear(layer.ffn.linear_0, f"{name}.fc1")
        self.linear(layer.ffn.linear_1, f"{name}.fc2")
        self.norm(layer.ffn.layer_norm, f"{name}.final_layer_norm")
