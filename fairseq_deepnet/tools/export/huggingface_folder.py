"""Hugging Face export: config, weights, tokenizer and model card for transformers.

transformers has two Post-LN encoder-decoders with sinusoidal positions, FSMT and Marian. FSMT was
ported from fairseq, but decodes incorrectly at least in versions 4.57 to 5.16: with a cache, all
tokens get the position of the first; without a cache, the decoder has no causal mask. Exports
therefore use Marian. Its sinusoids differ from fairseq's, but it loads its position table like any
weight, so the folder can contain fairseq's table, sinusoidal or learned. Otherwise, Marian computes
the same function as fairseq: LayerNorm follows the residual sum, embeddings are multiplied by
sqrt(C), and logits come from the (tied) embeddings plus a bias, which exports set to 0. Marian's
tokenizer accepts sentencepiece models whose pieces are in any order.
This module does not import transformers.
"""

import re
import shutil
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from safetensors.torch import save_file
from torch import Tensor

from fairseq_deepnet.files import write_text
from fairseq_deepnet.records import fingerprint, write_json
from fairseq_deepnet.tools.configs import recorded_config
from fairseq_deepnet.tools.corpora.folder import DataFolder
from fairseq_deepnet.tools.export import MAX_LENGTH
from fairseq_deepnet.tools.export.folding import FIRST_POSITION, position_table
from fairseq_deepnet.tools.export.stock import (
    OUTPUT,
    Vocabularies,
    no_counterpart,
    required_arguments,
    stock_translator,
)
from fairseq_deepnet.tools.languages import find
from fairseq_deepnet.tools.scores import read_scores
from fairseq_deepnet.tools.standalone import build_from_arguments
from fairseq_deepnet.tools.trained_model import TrainedModel

ENGINE: Final = "transformers"
ACTIVATIONS: Final = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_accurate": "gelu_new",
    "gelu_fast": "gelu_new",
    "tanh": "tanh",
}
"""Supported activation functions: fairseq's name -> transformers' name."""
_SPECIAL: Final = {
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
"""Setting of transformers -> fairseq's index of <s>, <pad> or </s>."""
SIDES: Final = ("encoder", "decoder")
_BIAS: Final = "final_logits_bias"
_NOT_WEIGHTS: Final = re.compile(r".*\.(version|embed_positions\..*)")


def write_folder(
    part: Path,
    model: TrainedModel,
    data: DataFolder,
    state: Mapping[str, Any],
    record: Mapping[str, Any],
) -> dict[str, Any]:
    """Write the weights, settings, tokenizer and model card; return entries for export.json."""
    stock, args, vocabularies = stock_translator(model, data, state, ENGINE, ACTIVATIONS)
    for side in SIDES:
        if getattr(args, f"{side}_normalize_before"):
            raise ValueError(
                f"the {side} is Pre-LN, and Marian's layers in {ENGINE} are Post-LN; use --to"
                " ctranslate2 or --to fairseq"
            )
        if f"{side}.layernorm_embedding.weight" in stock:
            raise ValueError(no_counterpart("--layernorm-embedding", ENGINE))
    names = [*(f"{side}.embed_tokens.weight" for side in SIDES), OUTPUT]
    widths = {stock[name].size(1) for name in names}
    if len({args.encoder_embed_dim, args.decoder_embed_dim, *widths}) > 1:
        raise ValueError(no_counterpart("a model with several widths", ENGINE))
    # sinusoids can have any length; learned tables cannot
    tables = [name for side in SIDES if (name := f"{side}.embed_positions.weight") in stock]
    accepted = (args.max_source_positions, args.max_target_positions)
    longest = min((len(stock[name]) - FIRST_POSITION for name in tables), default=max(accepted))
    source, target = (min(longest, positions) for positions in accepted)
    weights = marian_weights(stock, args, longest)
    write_json(part / "config.json", marian_config(weights, args, vocabularies))
    save_file(weights, part / "model.safetensors", metadata={"format": "pt"})
    # otherwise only the owner may read the weights
    shutil.copymode(part / "config.json", part / "model.safetensors")
    # the beam search of `deepnet translate`, which forbids empty translations and <pad>
    search = {
        "num_beams": 5,
        "length_penalty": 1.0,
        "early_stopping": True,
        "max_length": min(MAX_LENGTH, target - 1) + 2,  # including the first and the last </s>
        "min_new_tokens": 1,
        "suppress_tokens": [_SPECIAL["pad_token_id"]],
        **_SPECIAL,
    }
    write_json(part / "generation_config.json", search)
    write_tokenizer(part, source, data, vocabularies)
    with torch.device("meta"):  # Marian's weights include sinusoids, and tables that folding untied
        built = build_from_arguments(required_arguments(state), *map(len, vocabularies[:2]))
    facts = {"parameters": sum(parameter.numel() for parameter in built.parameters())}
    card = model_card(model, state, data, vocabularies.tokens, {**record, **facts})
    write_text(part / "README.md", card)
    return facts


def marian_weights(
    weights: Mapping[str, Tensor], args: Namespace, longest: int
) -> dict[str, Tensor]:
    """Convert fairseq's weights to Marian's state dict, with `longest` positions on each side."""
    marian = {
        f"model.{name}": tensor.float()
        for name, tensor in weights.items()
        if not _NOT_WEIGHTS.fullmatch(name)
    }
    output = marian.pop(f"model.{OUTPUT}")
    source, target = (marian[f"model.{side}.embed_tokens.weight"] for side in SIDES)
    if torch.equal(source, target) and torch.equal(target, output):
        marian["model.shared.weight"] = source
        for side in SIDES:
            del marian[f"model.{side}.embed_tokens.weight"]
    elif not torch.equal(target, output):
        marian["lm_head.weight"] = output
    for side in SIDES:
        table = position_table(weights, args, side, longest)
        marian[f"model.{side}.embed_positions.weight"] = table
    marian[_BIAS] = torch.zeros(1, output.size(0))
    # safetensors refuses tensors that share memory
    return {name: marian[name].contiguous().clone() for name in sorted(marian)}


def marian_config(
    weights: Mapping[str, Tensor], args: Namespace, vocabularies: Vocabularies
) -> dict[str, Any]:
    """Return the content of config.json."""
    sides: dict[str, Any] = {}
    for side in SIDES:
        maps = [name for name in weights if re.fullmatch(rf"model\.{side}\..*\.fc1\.weight", name)]
        sides |= {
            f"{side}_layers": len(maps),
            f"{side}_attention_heads": getattr(args, f"{side}_attention_heads"),
            f"{side}_ffn_dim": weights[maps[0]].size(0),
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


def write_tokenizer(
    part: Path, positions: int, data: DataFolder, vocabularies: Vocabularies
) -> None:
    """Write the sentencepiece models, the vocabularies and tokenizer_config.json.

    Language tokens have the form >>fr<<, which Marian's tokenizer recognises at the start of a
    line.
    """
    tokens = vocabularies.tokens
    names = {token: f">>{name}<<" for name, token in tokens["tokens"].items()} if tokens else {}
    source, target = (
        {names.get(symbol, symbol): number for number, symbol in enumerate(symbols)}
        for symbols in (vocabularies.source, vocabularies.target)
    )
    write_json(part / "vocab.json", source)
    if source != target:
        write_json(part / "target_vocab.json", target)
    first, last = data.languages[0], data.languages[-1]
    if tokens and len({data.subword_model(language) for language in data.languages}) > 1:
        raise ValueError(no_counterpart("one sentencepiece model per language", ENGINE))
    shutil.copy(data.subword_model(first), part / "source.spm")
    shutil.copy(data.subword_model(last), part / "target.spm")
    settings: dict[str, Any] = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": None if tokens else first,
        "target_lang": None if tokens else last,
        "separate_vocabs": source != target,
        "model_max_length": positions,
        "clean_up_tokenization_spaces": False,
        "unk_token": "<unk>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
    }
    if names:
        settings["additional_special_tokens"] = sorted(names.values())
    write_json(part / "tokenizer_config.json", settings)


def scores_of(model: TrainedModel) -> list[dict[str, Any]]:
    """Return the test scores of a model, sorted by name.

    Checkpoints are identified by their content. The scores of multilingual models are means over
    directions.
    """
    checkpoints = [fingerprint(path) for path in model.sources]
    return [
        {
            "name": score.name,
            "how": score.how(),
            "missing": score.facts.get("missing"),
            "bleu": score.headline,
            "chrf": score.values.get("chrf"),
            "signatures": score.signatures,
        }
        for score in read_scores(model.scores.parent)
        if (score.facts.get("request") or {}).get("checkpoints") == checkpoints
        and score.name.startswith("test.")
        and {"average", "bleu"} & score.values.keys()
    ]


def model_card(
    model: TrainedModel,
    state: Mapping[str, Any],
    data: DataFolder,
    tokens: dict[str, Any] | None,
    record: Mapping[str, Any],
) -> str:
    """Return the text of the model card: metadata, usage, scores and training, without a licence.

    Args:
        state: content of the checkpoint.
        record: the entries of export.json.
    """
    args = required_arguments(state)
    scheme, scores = record["scheme"], record["request"]["scores"]
    names = {code: language.name if (language := find(code)) else code for code in data.languages}
    title = "many languages" if tokens else " to ".join(names.values())
    title = f"{title}, {scheme} {args.encoder_layers}L-{args.decoder_layers}L"
    training: dict[str, Any] = {
        "data": data.path.name,
        "updates": f"{record['num_updates']:,}",
        "mean of": ", ".join(record["averaged"] or ()),
    }
    if model.run is not None:
        config = recorded_config(model.run)
        training |= {"tokens per batch": config.recipe.get("global-batch-tokens"), **config.options}
    results = [
        EvalResult(
            task_type="translation",
            dataset_type=data.path.name,
            dataset_name=data.path.name,
            dataset_split="test",
            metric_type=metric,
            metric_value=round(score[metric], 2),
        )
        for score in [score for score in scores if not score["missing"]][:1]  # shown by the hub
        for metric in ("bleu", "chrf")
        if score[metric] is not None
    ]
    metadata = ModelCardData(
        library_name="transformers",
        pipeline_tag="translation",
        language=list(data.languages),
        tags=["translation", "fairseq", scheme],
        model_name=title,
        eval_results=results or None,
    )
    card = ModelCard.from_template(
        metadata,
        template_path=str(Path(__file__).with_name("model_card.md")),
        title=title,
        width=args.encoder_embed_dim,
        alphas=(getattr(args, "residual_record", None) or {}).get("alphas") or {},
        names=names,
        tokens=tokens,
        scores=scores,
        training=training,
        is_lowercase=data.is_lowercase,
        **record,
    )
    return str(card)
