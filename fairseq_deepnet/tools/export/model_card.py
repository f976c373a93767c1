"""Model card of a Hugging Face folder: the record of a run for readers who do not have the run."""

from __future__ import annotations

import itertools
import json
from argparse import Namespace
from pathlib import Path
from typing import Any, Final

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from fairseq_deepnet.records import fingerprint
from fairseq_deepnet.tools.configs import recorded_config
from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.export.vocabularies import LanguageTokens
from fairseq_deepnet.tools.languages import find
from fairseq_deepnet.tools.scores import read_scores
from fairseq_deepnet.tools.trained_model import TrainedModel

Scores = list[dict[str, Any]]
_TEMPLATE: Final = Path(__file__).with_name("model_card.md")
_OPTIONS: Final = (
    *("max-update", "max-epoch", "lr", "lr-scheduler", "warmup-updates", "optimizer"),
    *("label-smoothing", "dropout", "weight-decay", "clip-norm", "seed"),
)
"""Training options that the card lists if the run set them."""
_CANDIDATES: Final = 100
"""Number of first test sentences, of which the shortest is the example of the card."""


def scores_of(model: TrainedModel) -> Scores:
    """Return the test scores of exactly these checkpoints with fairseq's engine, sorted by name.

    Checkpoints are compared by content. Scores of many directions are averaged.
    """
    checkpoints = [fingerprint(path) for path in model.sources]
    scores = []
    for score in read_scores(model.scores.parent):
        request = score.facts.get("request") or {}
        engine = score.facts.get("engine") or "fairseq"
        if (request.get("checkpoints"), engine) != (checkpoints, "fairseq"):
            continue
        if not (score.is_of_translations and score.name.startswith("test.")):
            continue
        count = score.facts.get("directions")
        scores.append(
            {
                "name": f"{score.name}, mean of {count} directions" if count else score.name,
                "bleu": score.headline,
                "chrf": score.values.get("chrf"),
                "lines": score.facts.get("lines"),
                "signatures": score.signatures,
            }
        )
    return scores


def model_card(
    model: TrainedModel,
    args: Namespace,
    data: DataFolder,
    tokens: LanguageTokens | None,
    scores: Scores,
    record: dict[str, Any],
) -> str:
    """Return the text of the card: metadata for the hub, usage, scores and training, without a
    licence.

    Args:
        args: arguments of the model.
        record: record of the export.
    """
    scheme, depth = record["scheme"], f"{args.encoder_layers}L-{args.decoder_layers}L"
    title = "many languages" if tokens else " to ".join(_name(code) for code in data.languages)
    title = f"{title}, {scheme} {depth}"
    alphas = (getattr(args, "residual_record", None) or {}).get("alphas") or {}
    example, first = _example(data, tokens)
    labels = {"bleu": "BLEU", "chrf": "chrF"}
    signatures = {
        (labels[metric], signature): None
        for score in scores
        for metric, signature in score["signatures"].items()
        if metric in labels
    }
    card = ModelCard.from_template(
        _metadata(title, scheme, data, scores),
        template_str=_TEMPLATE.read_text(encoding="utf-8"),
        title=title,
        depth=depth,
        width=args.encoder_embed_dim,
        parameters=record["parameters"],
        scheme=scheme,
        alphas=", ".join(f"{side} {alpha:.4g}" for side, alpha in alphas.items() if alpha),
        tokens=tokens,
        languages=data.languages,
        example=example,
        first=first,
        scores=scores,
        signatures=[*signatures],
        training=_training(model, data, record),
        is_lowercase=data.is_lowercase,
    )
    return str(card)


def _metadata(title: str, scheme: str, data: DataFolder, scores: Scores) -> ModelCardData:
    """Return the metadata, with the first score, which the hub shows beside the model."""
    results = [
        EvalResult(
            task_type="translation",
            dataset_type=data.path.name,
            dataset_name=data.path.name,
            dataset_split="test",
            metric_type=metric,
            metric_value=round(score[metric], 2),
        )
        for score in scores[:1]
        for metric in ("bleu", "chrf")
        if score[metric] is not None
    ]
    return ModelCardData(
        library_name="transformers",
        pipeline_tag="translation",
        language=list(data.languages),
        tags=["translation", "fairseq", scheme],
        model_name=title,
        eval_results=results or None,
    )


def _name(code: str) -> str:
    language = find(code)
    return language.name if language else code


def _example(data: DataFolder, tokens: LanguageTokens | None) -> tuple[str, str]:
    """Return an example sentence as Python code, and further arguments of `generate`.

    The sentence comes from the test text of the data, so that it is in the source language.
    """
    source, target = data.languages[0], data.languages[-1]
    text = data.text("test", Direction(source, target), source)
    line = f"a sentence of {_name(source)}"
    if text.is_file():
        lines = itertools.islice(read_lines(text), _CANDIDATES)
        line = min((line for line in lines if line.strip()), key=len, default=line)
    if tokens and tokens.source:
        line = f">>{target if tokens.source == 'tgt' else source}<< {line}"
    first = ""
    if tokens and tokens.target:
        first = f', forced_bos_token_id=tokenizer.convert_tokens_to_ids(">>{target}<<")'
    return json.dumps(line, ensure_ascii=False), first


def _training(model: TrainedModel, data: DataFolder, record: dict[str, Any]) -> dict[str, str]:
    """Return the rows of the training table, without empty values."""
    lines = (data.record.get("lines") or {}).get("train")
    if isinstance(lines, dict):
        count = f"{sum(lines.values()):,} of {len(lines)} pairs"
    else:
        count = f"{lines:,}" if lines else ""
    rows = {
        "data": data.path.name,
        "training lines": count,
        "subwords": str(data.record.get("subwords", "sentencepiece")),
        "updates": f"{record['num_updates']:,}",
        "mean of": ", ".join(model.averaged or ()),
    }
    if model.run is not None:
        config = recorded_config(model.run)
        rows |= {name: str(config.options[name]) for name in _OPTIONS if name in config.options}
        tokens = config.recipe.get("global-batch-tokens")
        rows["tokens per batch"] = f"{tokens:,}" if isinstance(tokens, int) else ""
    return rows
