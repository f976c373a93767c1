"""`deepnet evaluate`: from a run or a checkpoint to scores, translated, detokenised, recorded."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fairseq_deepnet.checkpoints import load_checkpoint, num_updates
from fairseq_deepnet.files import ROOT, shown, write_text
from fairseq_deepnet.provenance import fingerprint, git_revision, sha256, versions
from fairseq_deepnet.records import read_record, write_record
from fairseq_deepnet.tools.checkpoints.choice import Model, choose_model, find_data, newest_run
from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.evaluation import (
    directions_report,
    fast_engine,
    many_directions,
    scoring,
    tokenised_bleu,
    translation,
)
from fairseq_deepnet.tools.training import launch
from fairseq_deepnet.tools.translation.engine import BATCH, CPU_BATCH, ENGINES, threads_of
from fairseq_deepnet.tools.translation.opening import QUANTIZATION


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
        help=f"source tokens a batch ({translation.TOKENS}; of ctranslate2 {BATCH} sentences, on a"
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


def request(args: argparse.Namespace, model: Model, files: Sequence[Path]) -> dict[str, Any]:
    """All that decides the scores; where it is as recorded, there is nothing to do."""
    return {
        "checkpoints": [fingerprint(path) for path in model.sources],
        "data": {_short_name(path): sha256(path) for path in files},
        "split": args.split,
        "beam": args.beam,
        "lenpen": args.lenpen,
        "options": args.extra,
        **fast_engine.request(args),
    }


def _short_name(path: Path) -> str:
    """Of a file in a data folder; the reference in tokens is called as the one in text is."""
    return f"{path.parent.name}/{path.name}" if path.parent.name == "tokenised" else path.name


def run(args: argparse.Namespace) -> int:
    """Score a model, or print the scores it has; JSON and hypotheses are kept."""
    fast_engine.settle(args)
    if args.target is None:
        args.target = newest_run(ROOT / "runs")
        print(f"newest run: {shown(args.target)}", file=sys.stderr)
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
    folder = args.out or (model.run or model.path.resolve().parent) / "scores"
    name = _name(args, model)
    record = folder / f"{name}.json"
    files = what_scores_depend_on(data, args.split)
    data.refuse_changed(str(path.relative_to(data.path)) for path in files)
    wanted = request(args, model, files)
    if record.is_file():
        recorded = read_record(record, remedy="remove it to score again")
        if recorded.get("request") == wanted and (folder / f"{name}.txt").is_file():
            print(f"already scored: {shown(record)}", file=sys.stderr)
            _print(recorded)
            return 0
    print(f"model {shown(model.path)}, data {shown(data.path)}, {args.split} set", file=sys.stderr)
    scores, hypotheses = evaluate(args, model, data)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{name}.txt", "".join(f"{line}\n" for line in hypotheses))
    scores |= {"hypotheses": f"{name}.txt", "request": wanted}
    write_record(record, scores)
    print(f"scores and hypotheses: {shown(record.with_suffix(''))}.{{json,txt}}", file=sys.stderr)
    _print(scores)
    return 0


def _name(args: argparse.Namespace, model: Model) -> str:
    """Of the score: what was scored, and how."""
    search = f"beam{args.beam}.lenpen{args.lenpen:g}"
    return f"{args.split}.{model.path.stem}.{search}{fast_engine.suffix(args)}"


def _print(scores: dict[str, Any]) -> None:
    """sacreBLEU on one line; on a line of its own BLEU of tokens, where there are any."""
    print(scoring.describe(scores, scores["what"]))
    if "bleu_tokenised" in scores:
        print(tokenised_bleu.describe(scores))


def run_many(args: argparse.Namespace, model: Model, data: DataFolder) -> int:
    """Score every direction of a split, or of a folder of text; a table on standard output."""
    import torch

    folder = args.out or (model.run or model.path.resolve().parent) / "scores"
    out = folder / _name(args, model)
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
    gpus = launch.choose_devices(args.gpus, 1, 1, torch.cuda.device_count()).gpus
    cores = translation.cores_of(args)
    processes = args.processes or gpus or cores
    options = ["--beam", str(args.beam), "--lenpen", f"{args.lenpen:g}"]
    options += ["--max-tokens", str(args.batch or translation.TOKENS), *args.extra]
    engine = many_directions.Engine(
        checkpoint=model.path,
        folder=data.path,
        arguments=tuple(options),
        threads=threads_of(processes, cores),
        exported=fast_engine.folder_of(args, model, data),
        search=fast_engine.search_of(args),
    )
    print(
        f"model {shown(model.path)}, {len(jobs)} directions of {args.split}, {processes} at a time",
        file=sys.stderr,
    )
    many_directions.translate_all(jobs, engine, processes, gpus)
    lines = data.lines("train")
    training = lines if isinstance(lines, dict) else {Direction(*data.languages).pair: lines}
    print(directions_report.summarise(out, [str(job.direction) for job in jobs], training))
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
        hypotheses = fast_engine.translate(args, model, data, translation.cores_of(args))
    else:
        pieces = translation.generate_split(args, model, data, len(references))
        hypotheses = data.decode(pieces, direction.target)
    seconds = round(time.monotonic() - started, 1)
    scores = scoring.score(
        hypotheses, references, lowercase=data.is_lowercase, target_language=direction.target
    )
    if data.is_moses:
        tokens = list(read_lines(data.tokenised(args.split, direction.target)))
        scores |= tokenised_bleu.score(pieces, tokens, data.is_lowercase)
    what = (
        f"{args.split}, {len(references):,} sentences, {shown(model.path)} (update {updates:,}), "
        f"beam {args.beam}, lenpen {args.lenpen:g}{fast_engine.described(args)}"
    )
    facts = {
        "what": what,
        "model": shown(model.path),
        "averaged": [path.name for path in model.sources] if len(model.sources) > 1 else None,
        "updates": updates,
        "split": args.split,
        "beam": args.beam,
        "lenpen": args.lenpen,
        "engine": args.engine,
        "quantization": args.quantization,
        "reference": shown(reference_file),
        "seconds": seconds,
        "versions": versions() | fast_engine.version(args),
        "git": git_revision(),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return scores | facts, hypotheses
