"""The model card of an exported folder: what is recorded of a run, for people who have no run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.checkpoints import num_updates
from fairseq_deepnet.provenance import fingerprint
from fairseq_deepnet.records import NUMBER, read_record
from fairseq_deepnet.tools.configs import recorded_config
from fairseq_deepnet.tools.corpora.folder import DataFolder
from fairseq_deepnet.tools.export.stock import required_arguments, scheme_name
from fairseq_deepnet.tools.export.vocabularies import LanguageTokens
from fairseq_deepnet.tools.languages import find
from fairseq_deepnet.tools.trained_model import TrainedModel

_SCORE: Final[tuple[str, ...]] = (
    *("bleu", "bleu_signature", "chrf", "chrf_signature", "lines", "updates", "beam", "lenpen"),
)
_SHOWN: Final = (
    *("max-update", "max-epoch", "lr", "lr-scheduler", "warmup-updates", "optimizer"),
    *("label-smoothing", "dropout", "weight-decay", "clip-norm", "seed"),
)
"""Options of the training that the card lists, where the run set them."""


def read_scores(model: TrainedModel) -> dict[str, dict[str, Any]]:
    """Return the test scores of these very checkpoints by fairseq's engine, by file name.

    One of a single direction is a file, those of many a file each in a folder.
    """
    found = {}
    checkpoints = [fingerprint(path) for path in model.sources]
    name = f"test.{model.path.stem}."
    for path in sorted(model.scores.glob(f"{name}*.json")) + sorted(
        model.scores.glob(f"{name}*/*.json")
    ):
        try:
            score = read_record(path, {"bleu": NUMBER, "bleu_signature": str})
        except ValueError:
            continue
        asked = score.get("request") or {}
        engine = score.get("engine") or asked.get("engine") or "fairseq"
        if asked.get("checkpoints") == checkpoints and engine == "fairseq":
            found[str(path.relative_to(model.scores))] = {
                key: score[key] for key in _SCORE if key in score
            }
    return found


def model_card(
    model: TrainedModel,
    state: dict[str, Any],
    data: DataFolder,
    tokens: LanguageTokens | None,
    scores: dict[str, dict[str, Any]],
) -> str:
    """Return README.md: metadata for the hub, then use, scores and training; no licence."""
    args = required_arguments(state)
    scheme, depth = scheme_name(args), f"{args.encoder_layers}L-{args.decoder_layers}L"
    names = [known.name if (known := find(code)) else code for code in data.languages]
    what = "many languages" if tokens else f"{names[0]} to {names[1]}"
    head = ["library_name: transformers", "pipeline_tag: translation", "language:"]
    head += [f"- {code}" for code in data.languages]
    head += ["tags:", "- translation", "- fairseq", f"- {scheme}"]
    head += ["# license: yours to choose before you publish this"]
    # tied tables are one
    sizes = {tensor.data_ptr(): tensor.numel() for tensor in state["model"].values()}
    parameters = sum(size for size in sizes.values() if size > 1)  # without fairseq's markers
    record = (getattr(args, "residual_record", None) or {}).get("alphas") or {}
    alphas = ", ".join(f"{side} {alpha:.4g}" for side, alpha in record.items() if alpha)
    text = f"""\
A Transformer of {depth} and width {args.encoder_embed_dim}, {parameters:,} parameters, trained with
fairseq and the residual scheme `{scheme}`{f" (alpha: {alphas})" if alphas else ""}.
Its residual weights are folded into the branches: `MarianMTModel` computes it.

## Use

{_usage(data, tokens)}
## Scores

{_score_table(scores)}
## Training

| | |
|---|---|
"""
    facts = {"data": data.path.name, "training lines": _lines(data)}
    facts |= {"subwords": f"{data.record.get('subwords', 'sentencepiece')}"}
    facts |= {"updates": f"{num_updates(state):,}"}
    if model.averaged:
        facts["mean of"] = ", ".join(model.averaged)
    facts |= _options(model.run)
    rows = [f"| {name} | {value} |" for name, value in facts.items() if value]
    notes = (
        [] if not data.is_lowercase else ["", "The model knows lower case only: `text.lower()`."]
    )
    return "\n".join(
        ["---", *head, "---", "", f"# {what}, {scheme} {depth}", "", text]
    ) + "\n".join([*rows, *notes, ""])


def _lines(data: DataFolder) -> str:
    """Return the training lines, of many pairs all together; empty where they are not recorded."""
    counts = (data.record.get("lines") or {}).get("train")
    if isinstance(counts, dict):
        return f"{sum(counts.values()):,} of {len(counts)} pairs"
    return f"{counts:,}" if counts else ""


def _options(run: Path | None) -> dict[str, str]:
    if run is None:
        return {}
    config = recorded_config(run)
    shown = {name: str(config.options[name]) for name in _SHOWN if name in config.options}
    batch = config.recipe.get("global-batch-tokens")
    return shown | ({"tokens a batch": f"{batch:,}"} if isinstance(batch, int) else {})


def _usage(data: DataFolder, tokens: LanguageTokens | None) -> str:
    line, more, said = "A sentence.", "", ""
    if tokens is not None:
        first, last = data.languages[0], data.languages[-1]
        if tokens.source:
            line = f">>{last if tokens.source == 'tgt' else first}<< {line}"
            whose = "target" if tokens.source == "tgt" else "source"
            said += f"A line begins with the token of its {whose} language. "
        if tokens.target:
            more = f', forced_bos_token_id=tokenizer.convert_tokens_to_ids(">>{last}<<")'
            said += "A translation is made to begin with the token of its language. "
        said += f"Languages: {', '.join(data.languages)}.\n\n"
    return f"""{said}    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained("FOLDER")
    model = AutoModelForSeq2SeqLM.from_pretrained("FOLDER").eval()
    batch = tokenizer(["{line}"], return_tensors="pt", padding=True)
    print(tokenizer.batch_decode(model.generate(**batch{more}), skip_special_tokens=True))

transformers 4 also has `pipeline("translation", "FOLDER")`. torch and sentencepiece are needed too.
The positions are fairseq's, and part of the weights. `save_pretrained` leaves them out: after more
training, copy `model.encoder.embed_positions.weight` and the decoder's from `model.safetensors`.
"""


def _score_table(scores: dict[str, dict[str, Any]]) -> str:
    if not scores:
        return "None is recorded.\n"
    lines = ["| score | BLEU | chrF | sentences |", "|---|---:|---:|---:|"]
    for name, score in scores.items():
        chrf = f"{score['chrf']:.2f}" if score.get("chrf") is not None else ""
        what = name.removesuffix(".json")
        lines.append(f"| {what} | {score['bleu']:.2f} | {chrf} | {score.get('lines', '')} |")
    keys = ("bleu_signature", "chrf_signature")
    signatures = {score[key]: None for key in keys for score in scores.values() if score.get(key)}
    return "\n".join([*lines, "", *(f"`{signature}`  " for signature in signatures), ""])
