"""`deepnet perplexity`: how well a language model, or a masked one, predicts a split of its data.

A perplexity depends on the subwords it is counted in. That of a language model is therefore also
given per word (of the raw text, between spaces, an end of line counted as one), which models with
other subwords can be compared by. That of a masked model is of the masked subwords alone, masked as
in its training; it is no probability of the text.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fairseq_deepnet.checkpoints import load_checkpoint, num_updates
from fairseq_deepnet.files import say, shown
from fairseq_deepnet.provenance import fingerprint, git_revision, sha256, versions
from fairseq_deepnet.records import read_record, write_record
from fairseq_deepnet.tools import fairseq_options
from fairseq_deepnet.tools.checkpoints.choice import Model, choose_model, find_data, task_options
from fairseq_deepnet.tools.corpora.clean import count_words
from fairseq_deepnet.tools.corpora.folder import MONOLINGUAL_TASKS, DataFolder
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.evaluation.generation import failure, gpus_of

_LM_RESULT = re.compile(r"Loss \(base 2\): ([\d.]+), Perplexity: [\d.]+")
_LM_TOKENS = re.compile(r"Evaluated ([\d,]+) tokens")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `deepnet perplexity`."""
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("target", nargs="?", type=Path, help="run or checkpoint (the newest run)")
    parser.add_argument(
        "extra", nargs="*", help="options of fairseq-eval-lm or fairseq-validate, after --"
    )
    parser.add_argument("--data", type=Path, help="data folder (as the run recorded it)")
    parser.add_argument("--split", default="test", help="part of the data (test)")
    parser.add_argument("--average", type=int, default=0, help="average the last N checkpoints (0)")
    parser.add_argument("--batch", type=int, default=4000, help="tokens a batch (4000)")
    parser.add_argument("--gpus", default="all", help="0 is the CPU; else one GPU is used (all)")
    parser.add_argument("--out", type=Path, help="folder of the scores (scores/ in the run)")


def run(args: argparse.Namespace) -> int:
    """Measure a run, or print what was measured before; a JSON is kept."""
    model = choose_model(args.target, args.average)
    task = trained_task(model)
    data = find_data(model, args.data)
    binarised = data.path / f"{args.split}.bin"
    if not data.is_monolingual:
        raise ValueError(f"{shown(data.path)} holds language pairs; set DATA to a folder of one")
    if not binarised.is_file():
        known = ", ".join(data.record.get("lines") or ())
        raise ValueError(f"{shown(data.path)} has no split {args.split}; choose one of {known}")
    folder = args.out or model.scores
    record = folder / f"{args.split}.{model.path.stem}.perplexity.json"
    wanted = {
        "checkpoints": [fingerprint(path) for path in model.sources],
        "data": {name: sha256(data.path / name) for name in (binarised.name, "dict.txt")},
        "split": args.split,
        "options": args.extra,
    }
    if record.is_file():
        recorded = read_record(record, remedy="remove it to measure again")
        if recorded.get("request") == wanted:
            say(f"already measured: {shown(record)}")
            print(describe(recorded))
            return 0
    say(f"model {shown(model.path)}, data {shown(data.path)}, {args.split} set")
    facts = measure(args, model, data, task) | {"request": wanted}
    folder.mkdir(parents=True, exist_ok=True)
    write_record(record, facts)
    say(f"recorded: {shown(record)}")
    print(describe(facts))
    return 0


def trained_task(model: Model) -> dict[str, Any]:
    """The options of fairseq's task, its name as "_name", that a checkpoint was trained on.

    Raises ValueError for a model that is no language model.
    """
    options = task_options(model.sources[-1])
    name = options.setdefault("_name", options.get("task"))
    if name not in MONOLINGUAL_TASKS:
        raise ValueError(
            f"{shown(model.path)} was trained on the task {name}, which has no perplexity of text;"
            " score translations with scripts/eval_bleu.sh"
        )
    return options


def measure(
    args: argparse.Namespace, model: Model, data: DataFolder, task: dict[str, Any]
) -> dict[str, Any]:
    """Run fairseq's own evaluation and return what is to be recorded."""
    model.make()
    common = ["--user-dir", fairseq_options.user_dir(), "--path", str(model.path.resolve())]
    common += ["--task", task["_name"], "--max-tokens", str(args.batch)]
    common += ["--distributed-world-size", "1", *([] if gpus_of(args) else ["--cpu"])]
    started = time.monotonic()
    evaluate = _evaluate_lm if task["_name"] == "language_modeling" else _evaluate_masked
    measured = evaluate([str(data.path.resolve()), *common], args, data, task)
    return measured | {
        "task": task["_name"],
        "model": shown(model.path),
        "averaged": model.averaged,
        "updates": num_updates(load_checkpoint(model.path)),
        "split": args.split,
        "lines": data.lines(args.split),
        "data": shown(data.path),
        "seconds": round(time.monotonic() - started, 1),
        "versions": versions(),
        "git": git_revision(),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _evaluate_lm(
    arguments: list[str], args: argparse.Namespace, data: DataFolder, task: dict[str, Any]
) -> dict[str, Any]:
    """fairseq-eval-lm, which takes the shape of a sample from its command line."""
    options = ["--gen-subset", args.split, "--log-format", "none"]
    for name in ("sample_break_mode", "tokens_per_sample"):
        options += [f"--{name.replace('_', '-')}", str(task[name])]
    options += ["--add-bos-token"] if task.get("add_bos_token") else []
    output = _run(["fairseq-eval-lm", *arguments, *options, *args.extra])
    bits = float(_found(_LM_RESULT, output)[1])
    tokens = int(_found(_LM_TOKENS, output)[1].replace(",", ""))
    there = int(data.record["binarised"][args.split]["tokens"])
    if tokens != there and not args.extra:
        raise ValueError(
            f"fairseq-eval-lm read {tokens:,} of {there:,} tokens of {args.split}: it leaves out"
            " lines that are longer than the model's positions; split them"
        )
    language = data.languages[0]
    text = read_lines(data.path / "text" / f"{args.split}.{language}")
    words = sum(count_words(line) + 1 for line in text)
    return {
        "bits": bits,
        "perplexity": 2**bits,
        "word_perplexity": 2 ** (bits * tokens / words) if tokens == there else None,
        "tokens": tokens,
        "words": words,
    }


def _evaluate_masked(
    arguments: list[str], args: argparse.Namespace, data: DataFolder, task: dict[str, Any]
) -> dict[str, Any]:
    """fairseq-validate, which masks as the training did, with the training's seed."""
    options = ["--valid-subset", args.split, "--log-format", "json"]
    output = _run(["fairseq-validate", *arguments, *options, *args.extra])
    bits = float(_found(re.compile(rf'"{args.split}_loss": "([\d.]+)"'), output)[1])
    return {
        "bits": bits,
        "perplexity": 2**bits,
        "tokens": int(data.record["binarised"][args.split]["tokens"]),
        "mask_prob": task["mask_prob"],
        "seed": task["seed"],
    }


def _run(command: Sequence[str]) -> str:
    """All that a command prints; ValueError with its last line where it fails."""
    environment = dict(os.environ, PYTHONUNBUFFERED="1")
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        encoding="utf-8",
        errors="backslashreplace",
        check=False,
    )
    if done.returncode:
        raise ValueError(
            failure(command[0], done.returncode, done.stdout.splitlines(keepends=True))
        )
    return done.stdout


def _found(pattern: re.Pattern[str], output: str) -> re.Match[str]:
    match = pattern.search(output)
    if match is None:
        raise ValueError(f"no perplexity in what fairseq printed: {output[-300:]!r}")
    return match


def describe(facts: dict[str, Any]) -> str:
    """One line for people."""
    kind = "a masked subword" if facts["task"] == "masked_lm" else "a subword"
    line = f"perplexity {facts['perplexity']:.2f} {kind} ({facts['bits']:.3f} bits)"
    if facts.get("word_perplexity"):
        line += f", {facts['word_perplexity']:.2f} a word"
    if "mask_prob" in facts:
        line += f", {100 * facts['mask_prob']:g} % masked"
    return (
        f"{line}: {facts['split']}, {facts['lines']:,} lines, {facts['tokens']:,} subwords,"
        f" {facts['model']} (update {facts['updates']:,})"
    )
