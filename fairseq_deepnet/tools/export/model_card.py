"""Model card of a Hugging Face folder: the record of a run for readers who do not have the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from fairseq_deepnet.records import fingerprint
from fairseq_deepnet.tools.configs import recorded_config
from fairseq_deepnet.tools.corpora.folder import DataFolder
from fairseq_deepnet.tools.export.stock import required_arguments
from fairseq_deepnet.tools.languages import find
from fairseq_deepnet.tools.scores import read_scores
from fairseq_deepnet.tools.trained_model import TrainedModel


def scores_of(model: TrainedModel) -> list[dict[str, Any]]:
    """Return the test scores of exactly these checkpoints, sorted by name.

    Checkpoints are compared by content. A score of many directions is their mean.
    """
    checkpoints = [fingerprint(path) for path in model.sources]
    return [
        {
            "name": score.name,
            "bleu": score.headline,
            "chrf": score.values.get("chrf"),
            "signatures": score.signatures,
        }
        for score in read_scores(model.scores.parent)
        if (score.facts.get("request") or {}).get("checkpoints") == checkpoints
        and score.is_of_translations
        and score.name.startswith("test.")
    ]


def model_card(
    model: TrainedModel,
    state: Mapping[str, Any],
    data: DataFolder,
    tokens: dict[str, Any] | None,
    record: Mapping[str, Any],
) -> str:
    """Return the text of the card: metadata for the hub, usage, scores and training, without a
    licence. `state` is the checkpoint, `record` the record of the export.
    """
    args = required_arguments(state)
    scheme, scores = record["scheme"], record["request"]["scores"]
    names = {code: language.name if (language := find(code)) else code for code in data.languages}
    title = "many languages" if tokens else " to ".join(names.values())
    title = f"{title}, {scheme} {args.encoder_layers}L-{args.decoder_layers}L"
    training: dict[str, Any] = {
        "data": data.path.name,
        "updates": f"{record['num_updates']:,}",
        "mean of": ", ".join(model.averaged or ()),
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
        for score in scores[:1]  # which the hub shows beside the model
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
