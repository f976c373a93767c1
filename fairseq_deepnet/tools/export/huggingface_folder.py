"""Hugging Face export: config, weights, tokenizer and model card for transformers.

transformers has two Post-LN encoder-decoders with sinusoidal positions. FSMT, ported from fairseq,
has exactly fairseq's positions, but decodes wrongly in at least 4.57 to 5.16: with a cache, all
words get the position of the first; without one, its decoder has no causal mask. Marian counts from
0 with other frequencies, but loads its position table like any weight, so that the folder can
contain fairseq's table. Everything else agrees: LayerNorm after the sum, words times sqrt(C), and
logits from the (tied) words plus a bias, which is 0 here. Marian also accepts learned positions,
which Admin's export needs, and has a tokenizer for sentencepiece models with a vocabulary in any
order. Exports therefore use Marian. (Its `save_pretrained` omits the position tables.) This module
does not import transformers.
"""

from __future__ import annotations

import re
import shutil
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from fairseq_deepnet.files import write_json, write_text
from fairseq_deepnet.records import write_record
from fairseq_deepnet.tools.corpora.build import folder_digests
from fairseq_deepnet.tools.corpora.folder import DataFolder
from fairseq_deepnet.tools.export import BEAM, MAX_LENGTH, RECORD
from fairseq_deepnet.tools.export.folding import learned_positions, position_table
from fairseq_deepnet.tools.export.model_card import Scores, model_card
from fairseq_deepnet.tools.export.stock import required_arguments
from fairseq_deepnet.tools.export.vocabularies import (
    Vocabularies,
    no_counterpart,
    stock_translator,
    subword_files,
    subword_kind,
)
from fairseq_deepnet.tools.trained_model import TrainedModel

ENGINE: Final = "transformers"
ACTIVATIONS: Final = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_accurate": "gelu_new",
    "gelu_fast": "gelu_new",
    "tanh": "tanh",
}
"""fairseq's names of activation functions -> transformers' names."""
BOS, PAD, EOS = 0, 1, 2
"""fairseq's indices of <s>, <pad> and </s>."""
_SPECIAL: Final = {
    "bos_token_id": BOS,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "decoder_start_token_id": EOS,
    "forced_eos_token_id": EOS,
}
SIDES: Final = ("encoder", "decoder")
_BIAS: Final = "final_logits_bias"
_OUTPUT: Final = "decoder.output_projection.weight"
_NOT_WEIGHTS: Final = re.compile(r"(encoder|decoder)\.(version|embed_positions\..*)")


def write_folder(
    part: Path,
    model: TrainedModel,
    data: DataFolder,
    state: dict[str, Any],
    scores: Scores,
    record: dict[str, Any],
) -> None:
    """Write the folder.

    Raises:
        ValueError: for a model that cannot be folded or that Marian cannot compute.
    """
    kind = subword_kind(data)
    if kind != "sentencepiece":
        raise ValueError(
            f"{data.path} holds {kind} tokens, and {ENGINE} tokenises only with sentencepiece;"
            " use --to fairseq or --to ctranslate2"
        )
    stock, args, vocabularies = stock_translator(model, data, state, ENGINE, ACTIVATIONS)
    check_structure(stock, args)
    part.mkdir(parents=True)
    weights = marian_weights(stock, args)
    write_json(part / "config.json", marian_config(weights, args, vocabularies))
    try:
        save_file(weights, part / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:  # a full disk, for one
        raise ValueError(f"model.safetensors was not written: {error}") from error
    shutil.copymode(part / "config.json", part / "model.safetensors")  # it lets nobody else read
    longest = longest_of(stock, args)
    write_json(
        part / "generation_config.json",
        generation_settings(min(longest, args.max_target_positions)),
    )
    write_tokenizer(part, min(longest, args.max_source_positions), data, vocabularies)
    facts = record | {"parameters": count_parameters(weights)}
    own = required_arguments(state)
    card = model_card(model, own, data, vocabularies.tokens, scores, facts)
    write_text(part / "README.md", card)
    write_record(part / RECORD, facts | {"files": folder_digests(part)})


def check_structure(weights: Mapping[str, Tensor], args: Namespace) -> None:
    """Raise ValueError if Marian's layers cannot compute a stock Transformer."""
    for side in SIDES:
        if getattr(args, f"{side}_normalize_before"):
            raise ValueError(
                f"the {side} is Pre-LN (--residual-scheme pre-ln and others that become it), and"
                f" Marian's layers in {ENGINE} are Post-LN; use --to ctranslate2 or --to fairseq"
            )
        if f"{side}.layernorm_embedding.weight" in weights:
            raise ValueError(no_counterpart("--layernorm-embedding", ENGINE))
    names = (*(f"{side}.embed_tokens.weight" for side in SIDES), _OUTPUT)
    widths = {weights[name].size(1) for name in names if name in weights}
    if len({args.encoder_embed_dim, args.decoder_embed_dim, *widths}) > 1:
        raise ValueError(no_counterpart("sides, or words, of another width", ENGINE))


def marian_weights(weights: Mapping[str, Tensor], args: Namespace) -> dict[str, Tensor]:
    """Return Marian's state dict from fairseq's weights, word tables and position tables."""
    marian = {
        f"model.{name}": tensor
        for name, tensor in weights.items()
        if not _NOT_WEIGHTS.fullmatch(name)
    }
    # old checkpoints of fairseq's do not name a table twice
    output = marian.pop(f"model.{_OUTPUT}", marian["model.decoder.embed_tokens.weight"])
    source, target = (marian[f"model.{side}.embed_tokens.weight"] for side in SIDES)
    if _equal(source, target) and _equal(target, output):
        marian["model.shared.weight"] = source
        for side in SIDES:
            del marian[f"model.{side}.embed_tokens.weight"]
    elif not _equal(target, output):
        marian["lm_head.weight"] = output
    for side in SIDES:
        table = position_table(weights, args, side, longest_of(weights, args))
        marian[f"model.{side}.embed_positions.weight"] = table
    marian[_BIAS] = torch.zeros(1, output.size(0))
    # copies: a file of safetensors shares no memory
    return {name: marian[name].float().contiguous().clone() for name in sorted(marian)}


def count_parameters(weights: Mapping[str, Tensor]) -> int:
    """Return transformers' `model.num_parameters()`, without Marian's bias of zeros."""
    return sum(weight.numel() for name, weight in weights.items() if name != _BIAS)


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


def longest_of(weights: Mapping[str, Tensor], args: Namespace) -> int:
    """Return the number of positions of both sides: the length of the shorter learned table, beyond
    which translations would be wrong. Sinusoids can have any length.
    """
    tables = (learned_positions(weights, side) for side in SIDES)
    lengths = [len(table) for table in tables if table is not None]
    return min(lengths, default=max(args.max_source_positions, args.max_target_positions))


def marian_config(
    weights: Mapping[str, Tensor], args: Namespace, vocabularies: Vocabularies
) -> dict[str, Any]:
    """Return the content of config.json."""
    sides: dict[str, Any] = {}
    for side in SIDES:
        layers = {
            name.split(".")[3] for name in weights if name.startswith(f"model.{side}.layers.")
        }
        sides |= {
            f"{side}_layers": len(layers),
            f"{side}_attention_heads": getattr(args, f"{side}_attention_heads"),
            f"{side}_ffn_dim": weights[f"model.{side}.layers.0.fc1.weight"].size(0),
        }
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "vocab_size": len(vocabularies.source),
        "decoder_vocab_size": len(vocabularies.target),
        "d_model": args.encoder_embed_dim,
        **sides,
        "activation_function": ACTIVATIONS[args.activation_fn],
        "dropout": args.dropout,
        "attention_dropout": args.attention_dropout,
        "activation_dropout": args.activation_dropout,
        "max_position_embeddings": len(weights["model.encoder.embed_positions.weight"]),
        "scale_embedding": not args.no_scale_embedding,
        "share_encoder_decoder_embeddings": "model.shared.weight" in weights,
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "is_encoder_decoder": True,
        **_SPECIAL,
        "torch_dtype": "float32",
    }


def generation_settings(positions: int) -> dict[str, Any]:
    """Return the content of generation_config.json: the search of `deepnet translate`.

    As in fairseq, a translation has at least one word, contains no <pad>, and its length includes
    </s>.
    """
    longest = min(MAX_LENGTH, positions - 1)
    return {
        "num_beams": BEAM,
        "length_penalty": 1.0,
        "early_stopping": True,
        "max_length": longest + 2,  # the </s> that it starts with, and its own
        "min_new_tokens": 1,
        "suppress_tokens": [PAD],
        **_SPECIAL,
    }


def write_tokenizer(
    part: Path, positions: int, data: DataFolder, vocabularies: Vocabularies
) -> None:
    """Write the sentencepiece models, the vocabularies and tokenizer_config.json.

    The token of a language is >>fr<<, which Marian's tokenizer recognises at the start of a line.
    """
    tokens = vocabularies.tokens
    names = {token: f">>{name}<<" for name, token in tokens.tokens.items()} if tokens else {}
    source, target = (
        {names.get(symbol, symbol): number for number, symbol in enumerate(symbols)}
        for symbols in (vocabularies.source, vocabularies.target)
    )
    separate = source != target
    write_json(part / "vocab.json", source)
    if separate:
        write_json(part / "target_vocab.json", target)
    models = subword_files(data)
    first, last = (data.languages[0], data.languages[-1])
    if tokens and len({path.read_bytes() for path in models.values()}) > 1:
        raise ValueError(no_counterpart("a sentencepiece model for each of many languages", ENGINE))
    shutil.copy(models[first], part / "source.spm")
    shutil.copy(models[last], part / "target.spm")
    settings: dict[str, Any] = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": None if tokens else first,
        "target_lang": None if tokens else last,
        "separate_vocabs": separate,
        "model_max_length": positions,
        "clean_up_tokenization_spaces": False,
        "unk_token": "<unk>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
    }
    if names:
        settings["additional_special_tokens"] = sorted(names.values())
    write_json(part / "tokenizer_config.json", settings)
