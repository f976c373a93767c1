"""`deepnet evaluate`: from a run or a checkpoint to scores, translated, detokenised, recorded.

Scores of both engines lie side by side: the name of one by CTranslate2 ends in the engine and the
type of its weights.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.checkpoints import load_checkpoint, num_updates
from fairseq_deepnet.files import say, shown, write_text
from fairseq_deepnet.provenance import fingerprint, git_revision, sha256, versions
from fairseq_deepnet.records import read_record, write_record
from fairseq_deepnet.tools.checkpoints.choice import Model, choose_model, find_data
from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.evaluation import generation, scoring
from fairseq_deepnet.tools.processor import threads_of
from fairseq_deepnet.tools.translation.engine import BATCH, CPU_BATCH, ENGINES, QUANTIZATION

FEW_TOKENS: Final = 256
"""Of a batch: fewer are likely meant as sentences, which ctranslate2 counted once."""


def what_scores_depend_on(data: DataFolder, split: str) -> list[Path]:
    """The files of a data folder of one pair that a score of this split follows from."""
    target = data.languages[1]
    own = [data.path / "corpus.json", data.tokenised(split, target)] if data.is_moses else []
    text = sorted((data.path / "text").glob(f"{split}.*"))
    return [*text, data.subword_model(target), *own]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `deepnet evaluate`."""
    parser.add_argument("target", nargs="?", type=Path, help="run or checkpoint (the newest run)")
    parser.add_argument("extra", nargs="*", help="options of fairseq-generate, after --")
    parser.add_argument("--data", type=Path, help="data folder (as the run recorded it)")
    parser.add_argument("--split", default="test", help="part of the data (test)")
    parser.add_argument("--beam", type=int, default=5, help="beam size (5)")
    parser.add_argument("--lenpen", type=float, default=1.0, help="length penalty (1)")
    parser.add_argument("--average", type=int, default=0, help="average the last N checkpoints (0)")
    parser.add_argument(
        "--batch",
        type=int,
        help=f"source tokens a batch ({generation.TOKENS}; of ctranslate2 {BATCH} sentences, on a"
        f" CPU {CPU_BATCH})",
    )
    parser.add_argument(
        "--engine", choices=ENGINES, default=ENGINES[0], help="what decodes (fairseq)"
    )
    parser.add_argument(
        "--quantization", help=f"of ctranslate2's weights: float32, int8 ... ({QUANTIZATION})"
    )
    parser.add_argument("--threads", type=int, help="cores to use (all)")
    parser.add_argument("--gpus", default="all", help="GPUs to use; 0 is the CPU (all visible)")
    parser.add_argument("--processes", type=int, help="processes on the CPU (one a core)")
    parser.add_argument("--directions", default="", help="of many: only these, as in de-en,en-de")
    parser.add_argument(
        "--text",
        type=Path,
        help="translate this folder's SPLIT.A-B.A and score against SPLIT.A-B.B",
    )
    parser.add_argument("--tokenizer", help="of many: BLEU's tokenizer (by target language)")
    parser.add_argument("--out", type=Path, help="folder of the scores (scores/ in the run)")


def settle_engine(args: argparse.Namespace) -> None:
    """Fill in the type of weights. ValueError for options that are the other engine's."""
    if args.threads is not None and args.threads < 1:
        raise ValueError(f"THREADS={args.threads}; at least 1 is needed")
    if args.engine == "ctranslate2":
        args.quantization = args.quantization or QUANTIZATION
        if args.extra:
            raise ValueError(
                f"{' '.join(args.extra)}: options of fairseq-generate; leave them out, or set "
                "ENGINE=fairseq"
            )
        if args.batch is not None and args.batch < FEW_TOKENS:
            say(f"BATCH={args.batch} are source tokens, with ctranslate2 too (they were sentences)")
    elif args.quantization:
        raise ValueError(f"QUANTIZATION={args.quantization} needs ENGINE=ctranslate2")


def engine_facts(args: argparse.Namespace) -> dict[str, str]:
    """What of the engine decides the scores; nothing for fairseq, whose scores were here first."""
    if args.engine == "fairseq":
        return {}
    return {"engine": args.engine, "quantization": args.quantization}


def request(args: argparse.Namespace, model: Model, files: Sequence[Path]) -> dict[str, Any]:
    """All that decides the scores; where it is as recorded, there is nothing to do."""
    # the reference in tokens is called as the one in text is
    names = {
        path: f"tokenised/{path.name}" if path.parent.name == "tokenised" else path.name
        for path in files
    }
    return {
        "checkpoints": [fingerprint(path) for path in model.sources],
        "data": {name: sha256(path) for path, name in names.items()},
        "split": args.split,
        "beam": args.beam,
        "lenpen": args.lenpen,
        "options": args.extra,
        **engine_facts(args),
    }


def _short_name(path: Path) -> str:
    """Of a file in a data folder; the reference in tokens is called as the one in text is."""
    return f"{path.parent.name}/{path.name}" if path.parent.name == "tokenised" else path.name


def run(args: argparse.Namespace) -> int:
    """Score a model, or print the scores it has; JSON and hypotheses are kept."""
    settle_engine(args)
    model = choose_model(args.target, args.average)
    data = find_data(model, args.data)
    if data.is_monolingual:
        raise ValueError(
            f"{shown(data.path)} holds text of one language, and nothing is translated;"
            " for a perplexity run scripts/eval_perplexity.sh"
        )
    if data.is_multilingual or args.text:
        return run_many(args, model, data)
    if args.directions:
        raise ValueError(f"{shown(data.path)} holds one direction; leave --directions out")
    if args.tokenizer:
        raise ValueError(
            f"--tokenizer {args.tokenizer}: {shown(data.path)} holds one direction, whose target"
            " language chooses it; leave it out, and count the hypotheses with `deepnet score"
            f" --tokenizer {args.tokenizer}` afterwards"
        )
    folder = args.out or model.scores
    name = _score_name(args, model)
    record = folder / f"{name}.json"
    files = what_scores_depend_on(data, args.split)
    data.refuse_changed(str(path.relative_to(data.path)) for path in files)
    wanted = request(args, model, files)
    if record.is_file():
        recorded = read_record(record, remedy="remove it to score again")
        if recorded.get("request") == wanted and (folder / f"{name}.txt").is_file():
            say(f"already scored: {shown(record)}")
            _print(recorded)
            return 0
    say(f"model {shown(model.path)}, data {shown(data.path)}, {args.split} set")
    scores, hypotheses = evaluate(args, model, data)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{name}.txt", "".join(f"{line}\n" for line in hypotheses))
    scores |= {"hypotheses": f"{name}.txt", "request": wanted}
    write_record(record, scores)
    say(f"scores and hypotheses: {shown(record.with_suffix(''))}.{{json,txt}}")
    _print(scores)
    return 0


def _score_name(args: argparse.Namespace, model: Model) -> str:
    """What was scored, and how."""
    engine = "-".join(engine_facts(args).values())
    name = f"{args.split}.{model.path.stem}.beam{args.beam}.lenpen{args.lenpen:g}"
    return f"{name}.{engine}" if engine else name


def _print(scores: dict[str, Any]) -> None:
    """sacreBLEU on one line; on a line of its own BLEU of tokens, where there are any."""
    print(scoring.describe(scores, scores["what"]))
    if "bleu_tokenised" in scores:
        print(scoring.describe_tokens(scores))


def run_many(args: argparse.Namespace, model: Model, data: DataFolder) -> int:
    """Score every direction of a split, or of a folder of text; a table on standard output."""
    # what scores one direction needs none of these
    from fairseq_deepnet.tools.evaluation import directions, many_directions

    out = (args.out or model.scores) / _score_name(args, model)
    model.make()
    files = [data.subword_model(language) for language in data.languages]
    wanted = request(args, model, files)
    only = [name for name in args.directions.split(",") if name]
    if args.text and data.is_moses:
        raise ValueError(
            f"{shown(data.path)} holds Moses tokens, and --text takes models of raw text; "
            "set DATA to a folder with a sentencepiece model"
        )
    if args.text:
        texts = many_directions.texts_in(args.text, args.split, data.languages, only)
    else:
        texts = many_directions.texts_of_folder(data, args.split, only)
    jobs = many_directions.make_jobs(data, texts, args.tokenizer, out, wanted)
    sides = {path for job in jobs for path in (job.source, job.reference)}
    own = sorted(path for path in sides if path.is_relative_to(data.path))
    data.refuse_changed(str(path.relative_to(data.path)) for path in own)
    gpus, cores = generation.gpus_of(args), generation.cores_of(args)
    processes = args.processes or gpus or cores
    options = ["--beam", str(args.beam), "--lenpen", f"{args.lenpen:g}"]
    options += ["--max-tokens", str(args.batch or generation.TOKENS), *args.extra]
    settings = many_directions.EngineSettings(
        checkpoint=model.path,
        folder=data.path,
        arguments=tuple(options),
        threads=threads_of(processes, cores),
        exported=generation.exported_model(args, model, data) if engine_facts(args) else None,
        search=generation.ctranslate2_search(args),
    )
    say(f"model {shown(model.path)}, {len(jobs)} directions of {args.split}, {processes} at a time")
    many_directions.translate_all(jobs, settings, processes, gpus)
    lines = data.lines("train")
    training = lines if isinstance(lines, dict) else {Direction(*data.languages).pair: lines}
    print(directions.summarise(out, [str(job.direction) for job in jobs], training))
    return 0


def evaluate(
    args: argparse.Namespace, model: Model, data: DataFolder
) -> tuple[dict[str, Any], list[str]]:
    """Translate and score; returns the scores with what they are of, and the hypotheses."""
    direction = Direction(*data.languages)
    reference_file = data.text(args.split, direction, direction.target)
    references = list(read_lines(reference_file))
    model.make()
    updates = num_updates(load_checkpoint(model.path))
    started = time.monotonic()
    if args.engine == "ctranslate2":
        pieces: list[str] = []
        hypotheses = generation.translate_with_ctranslate2(args, model, data)
    else:
        pieces = generation.translate_with_fairseq(args, model, data, len(references))
        hypotheses = data.decode(pieces, direction.target)
    seconds = round(time.monotonic() - started, 1)
    scores = scoring.score(
        hypotheses, references, lowercase=data.is_lowercase, target_language=direction.target
    )
    if data.is_moses:
        tokens = list(read_lines(data.tokenised(args.split, direction.target)))
        scores |= scoring.score_tokens(pieces, tokens, data.is_lowercase)
    what = (
        f"{args.split}, {len(references):,} sentences, {shown(model.path)} (update {updates:,}), "
        f"beam {args.beam}, lenpen {args.lenpen:g}"
    )
    engine = engine_facts(args)
    if engine:
        what += f", {' '.join(engine.values())}"
    facts = {
        "what": what,
        "model": shown(model.path),
        "averaged": model.averaged,
        "updates": updates,
        "split": args.split,
        "beam": args.beam,
        "lenpen": args.lenpen,
        "engine": args.engine,
        "quantization": args.quantization,
        "reference": shown(reference_file),
        "seconds": seconds,
        "versions": versions() | ({args.engine: metadata.version(args.engine)} if engine else {}),
        "git": git_revision(),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return scores | facts, hypotheses
