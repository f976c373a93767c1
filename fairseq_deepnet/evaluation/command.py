"""`deepnet evaluate`: from a run or a checkpoint to scores, translated, detokenised, recorded."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fairseq_deepnet import fairseq_options
from fairseq_deepnet.checkpoints import load_checkpoint, num_updates
from fairseq_deepnet.checkpoints.average import average_checkpoints
from fairseq_deepnet.corpora.folder import DataFolder, Direction
from fairseq_deepnet.corpora.text import read_lines
from fairseq_deepnet.evaluation import (
    directions_report,
    many_directions,
    scoring,
    tokenised_bleu,
    translation,
)
from fairseq_deepnet.evaluation.choice import Model, choose_model, find_data, newest_run
from fairseq_deepnet.provenance import (
    ROOT,
    fingerprint,
    git_revision,
    sha256,
    shown,
    versions,
    write_json,
    write_text,
)
from fairseq_deepnet.training import launch


def what_scores_depend_on(data: DataFolder, split: str) -> list[Path]:
    """The files of a data folder of one pair that a score of this split follows from."""
    target = data.languages[1]
    # the tokens of a Moses folder follow from its text and its settings
    settings = [data.path / "corpus.json"] if data.is_moses else []
    text = sorted((data.path / "text").glob(f"{split}.*"))
    return [*text, data.subword_model(target), *settings]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `deepnet evaluate`."""
    parser.add_argument("target", nargs="?", type=Path, help="run or checkpoint (the newest run)")
    parser.add_argument("extra", nargs="*", help="options of fairseq-generate, after --")
    parser.add_argument("--data", type=Path, help="data folder (as the run recorded it)")
    parser.add_argument("--split", default="test", help="part of the data (test)")
    parser.add_argument("--beam", type=int, default=5, help="beam size (5)")
    parser.add_argument("--lenpen", type=float, default=1.0, help="length penalty (1)")
    parser.add_argument("--average", type=int, default=0, help="average the last N checkpoints (0)")
    parser.add_argument("--batch", type=int, default=4000, help="source tokens a batch (4000)")
    parser.add_argument("--gpus", default="all", help="GPUs to use; 0 is the CPU (all visible)")
    parser.add_argument("--processes", type=int, help="processes on the CPU (one a core)")
    parser.add_argument("--directions", default="", help="of many: only these, as in de-en,en-de")
    parser.add_argument(
        "--text",
        type=Path,
        help="translate this folder's SPLIT.A-B.A and score against SPLIT.A-B.B",
    )
    parser.add_argument("--tokenizer", help="of many: BLEU's tokenizer (by target language)")
    parser.add_argument("--output", type=Path, help="folder of the scores (scores/ in the run)")


def request(args: argparse.Namespace, model: Model, files: Sequence[Path]) -> dict[str, Any]:
    """All that decides the scores; where it is as recorded, there is nothing to do."""
    return {
        "checkpoints": [fingerprint(path) for path in model.sources],
        "data": {path.name: sha256(path) for path in files},
        "split": args.split,
        "beam": args.beam,
        "lenpen": args.lenpen,
        "options": args.extra,
    }


def run(args: argparse.Namespace) -> int:
    """Score a model, or print the scores it has; JSON and hypotheses are kept."""
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
    folder = args.output or (model.run or model.path.resolve().parent) / "scores"
    name = f"{args.split}.{model.path.stem}.beam{args.beam}.lenpen{args.lenpen:g}"
    record = folder / f"{name}.json"
    wanted = request(args, model, what_scores_depend_on(data, args.split))
    if record.is_file():
        recorded = json.loads(record.read_text(encoding="utf-8"))
        if recorded.get("request") == wanted and (folder / f"{name}.txt").is_file():
            print(f"already scored: {shown(record)}", file=sys.stderr)
            _print(recorded)
            return 0
    print(f"model {shown(model.path)}, data {shown(data.path)}, {args.split} set", file=sys.stderr)
    scores, hypotheses = evaluate(args, model, data)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{name}.txt", "".join(f"{line}\n" for line in hypotheses))
    scores |= {"hypotheses": f"{name}.txt", "request": wanted}
    write_json(record, scores)
    print(f"scores and hypotheses: {shown(record.with_suffix(''))}.{{json,txt}}", file=sys.stderr)
    _print(scores)
    return 0


def _print(scores: dict[str, Any]) -> None:
    """sacreBLEU on one line; on a line of its own BLEU of tokens, where there are any."""
    print(scoring.describe(scores, scores["what"]))
    if "bleu_tokenised" in scores:
        print(tokenised_bleu.describe(scores))


def run_many(args: argparse.Namespace, model: Model, data: DataFolder) -> int:
    """Score every direction of a split, or of a folder of text; a table on standard output."""
    import torch

    folder = args.output or (model.run or model.path.resolve().parent) / "scores"
    out = folder / f"{args.split}.{model.path.stem}.beam{args.beam}.lenpen{args.lenpen:g}"
    if model.sources != [model.path]:
        average_checkpoints(model.sources, model.path)
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
    gpus = launch.choose_devices(args.gpus, 1, 1, torch.cuda.device_count()).gpus
    processes = args.processes or gpus or _cores()
    options = ["--beam", str(args.beam), "--lenpen", f"{args.lenpen:g}"]
    options += ["--max-tokens", str(args.batch), *args.extra]
    threads = _threads(processes)
    engine = many_directions.Engine(model.path, data.path, tuple(options), threads)
    print(
        f"model {shown(model.path)}, {len(jobs)} directions of {args.split}, {processes} at a time",
        file=sys.stderr,
    )
    many_directions.translate_all(jobs, engine, processes, gpus)
    lines = data.record["lines"]["train"]
    training = lines if isinstance(lines, dict) else {Direction(*data.languages).pair: lines}
    print(directions_report.summarise(out, [str(job.direction) for job in jobs], training))
    return 0


def evaluate(
    args: argparse.Namespace, model: Model, data: DataFolder
) -> tuple[dict[str, Any], list[str]]:
    """Translate and score; returns the scores with what they are of, and the hypotheses."""
    import torch

    direction = Direction(*data.languages)
    reference_file = data.text(args.split, direction, direction.target)
    references = list(read_lines(reference_file))
    if model.sources != [model.path]:
        average_checkpoints(model.sources, model.path)
    updates = num_updates(load_checkpoint(model.path))
    gpus = launch.choose_devices(args.gpus, 1, 1, torch.cuda.device_count()).gpus
    processes = gpus or args.processes or _cores()
    processes = min(processes, max(1, len(references)))
    arguments = [str(data.path.resolve()), "--path", str(model.path.resolve())]
    arguments += ["--user-dir", fairseq_options.user_dir(), "--gen-subset", args.split]
    arguments += ["--source-lang", direction.source, "--target-lang", direction.target]
    arguments += ["--beam", str(args.beam), "--lenpen", f"{args.lenpen:g}"]
    arguments += ["--max-tokens", str(args.batch), "--log-format", "none"]
    if processes > 1:
        # fairseq-generate fails where a process gets no batch at all
        arguments += ["--batch-size", str(max(1, len(references) // (2 * processes)))]
    arguments += ([] if gpus else ["--cpu"]) + args.extra
    started = time.monotonic()
    pieces = translation.generate(arguments, processes, gpus, len(references), _threads(processes))
    seconds = round(time.monotonic() - started, 1)
    hypotheses = data.decode(pieces, direction.target)
    scores = scoring.score(
        hypotheses, references, lowercase=data.is_lowercase, target_language=direction.target
    )
    if data.is_moses:
        tokens = list(read_lines(data.tokenised(args.split, direction.target)))
        scores |= tokenised_bleu.score(pieces, tokens, data.is_lowercase)
    what = (
        f"{args.split}, {len(references):,} sentences, {shown(model.path)} (update {updates:,}), "
        f"beam {args.beam}, lenpen {args.lenpen:g}"
    )
    facts = {
        "what": what,
        "model": shown(model.path),
        "averaged": [path.name for path in model.sources] if len(model.sources) > 1 else None,
        "updates": updates,
        "split": args.split,
        "beam": args.beam,
        "lenpen": args.lenpen,
        "reference": shown(reference_file),
        "seconds": seconds,
        "versions": versions(),
        "git": git_revision(),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return scores | facts, hypotheses


def _threads(processes: int) -> int:
    """Threads of each process: OMP_NUM_THREADS where it is set, as a sweep does for its cells at
    work, otherwise its share of the cores.
    """
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return int(limit) if limit.isdecimal() and int(limit) else max(1, _cores() // processes)


def _cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))
