"""`deepnet perplexity`: how well a language model, or a masked one, predicts a split of its data.

A perplexity depends on the subwords it is counted in. That of a language model is therefore also
given per word (of the raw text, between spaces, an end of line counted as one), which models with
other subwords can be compared by. That of a masked model is of only the masked subwords, masked as
in its training; it is no probability of the text.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_deepnet.checkpoints import load_checkpoint, num_updates
from fairseq_deepnet.files import PACKAGE, say, shown
from fairseq_deepnet.provenance import fingerprint, made_now, sha256
from fairseq_deepnet.records import record_of, write_record
from fairseq_deepnet.tools.corpora.clean import count_words
from fairseq_deepnet.tools.corpora.folder import MONOLINGUAL_TASKS, DataFolder
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.evaluation.evaluate import gpus_of, named_after
from fairseq_deepnet.tools.trained_model import (
    TrainedModel,
    choose_model,
    find_data,
    is_own_data,
    task_options,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet perplexity`."""
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("target", nargs="?", type=Path, help="run or checkpoint (the newest run)")
    parser.add_argument(
        "extra", nargs="*", help="options of fairseq-eval-lm or fairseq-validate, after --"
    )
    parser.add_argument("--data", type=Path, help="data folder (as the run recorded it)")
    parser.add_argument("--split", default="test", help="part of the data (test)")
    parser.add_argument("--average", type=int, default=0, help="average the last N checkpoints (0)")
    parser.add_argument("--batch", type=int, default=4000, help="tokens per batch (4000)")
    parser.add_argument("--gpus", default="all", help="0 is the CPU; else one GPU is used (all)")
    parser.add_argument("--out", type=Path, help="folder of the scores (scores/ in the run)")


def run(args: argparse.Namespace) -> int:
    """Measure a run, or print what was measured before; a JSON is kept."""
    model = choose_model(args.target, args.average)
    task = task_options(model.sources[-1])
    name = task.setdefault("_name", task.get("task"))
    if name not in MONOLINGUAL_TASKS:
        raise ValueError(
            f"{shown(model.path)} was trained on the task {name}, which has no perplexity of text;"
            " score translations with deepnet evaluate"
        )
    data = find_data(model, args.data)
    binarised = data.path / f"{args.split}.bin"
    if not data.is_monolingual:
        raise ValueError(f"{shown(data.path)} holds language pairs; set DATA to a folder of one")
    if not binarised.is_file():
        known = ", ".join(data.record.get("lines") or ())
        raise ValueError(f"{shown(data.path)} has no split {args.split}; choose one of {known}")
    folder = args.out or model.scores
    other = None if is_own_data(model, data.path) else data.path
    record = folder / f"{named_after(other, f'{args.split}.{model.path.stem}.perplexity')}.json"
    wanted = {
        "checkpoints": [fingerprint(path) for path in model.sources],
        "data": {name: sha256(data.path / name) for name in (binarised.name, "dict.txt")},
        "split": args.split,
        "options": args.extra,
    }
    facts = record_of(record, wanted, "remove it to measure again")
    if facts is not None:
        say(f"already measured: {shown(record)}")
    else:
        say(f"model {shown(model.path)}, data {shown(data.path)}, {args.split} set")
        facts = measure(args, model, data, task) | {"request": wanted}
        folder.mkdir(parents=True, exist_ok=True)
        write_record(record, facts)
        say(f"recorded: {shown(record)}")
    print(describe(facts))
    return 0


def measure(
    args: argparse.Namespace, model: TrainedModel, data: DataFolder, task: dict[str, Any]
) -> dict[str, Any]:
    """Run fairseq's own evaluation and return what is to be recorded."""
    model.make()
    command = [str(data.path.resolve()), "--user-dir", str(PACKAGE)]
    command += ["--path", str(model.path.resolve())]
    command += ["--task", task["_name"], "--max-tokens", str(args.batch)]
    command += ["--distributed-world-size", "1", *([] if gpus_of(args) else ["--cpu"])]
    started = time.monotonic()
    if task["_name"] == "language_modeling":
        measured = _evaluate_lm(command, args, data, task)
    else:
        measured = _evaluate_masked(command, args, data, task)
    return measured | {
        "task": task["_name"],
        "model": shown(model.path),
        "averaged": model.averaged,
        "updates": num_updates(load_checkpoint(model.path)),
        "split": args.split,
        "lines": data.lines(args.split),
        "data": shown(data.path),
        "seconds": round(time.monotonic() - started, 1),
        **made_now(),
    }


def _evaluate_lm(
    command: list[str], args: argparse.Namespace, data: DataFolder, task: dict[str, Any]
) -> dict[str, Any]:
    """Run fairseq-eval-lm, which takes the shape of a sample from its command line."""
    command = ["fairseq-eval-lm", *command, "--gen-subset", args.split, "--log-format", "none"]
    for name in ("sample_break_mode", "tokens_per_sample"):
        command += [f"--{name.replace('_', '-')}", str(task[name])]
    command += ["--add-bos-token"] if task.get("add_bos_token") else []
    found, counted = _printed(
        [*command, *args.extra],
        r"Loss \(base 2\): ([\d.]+), Perplexity: [\d.]+",
        r"Evaluated ([\d,]+) tokens",
    )
    bits, tokens = float(found), int(counted.replace(",", ""))
    there = int(data.record["binarised"][args.split]["tokens"])
    if tokens != there and not args.extra:
        raise ValueError(
            f"fairseq-eval-lm read {tokens:,} of {there:,} tokens of {args.split}: it leaves out"
            " lines that are longer than the model's positions; split them"
        )
    text = read_lines(data.path / "text" / f"{args.split}.{data.languages[0]}")
    count = sum(count_words(line) + 1 for line in text)
    return {
        "bits": bits,
        "perplexity": 2**bits,
        "word_perplexity": 2 ** (bits * tokens / count) if tokens == there else None,
        "tokens": tokens,
        "words": count,
    }


def _evaluate_masked(
    command: list[str], args: argparse.Namespace, data: DataFolder, task: dict[str, Any]
) -> dict[str, Any]:
    """Run fairseq-validate, which masks as the training did, with the training's seed."""
    command = ["fairseq-validate", *command, "--valid-subset", args.split, "--log-format", "json"]
    (found,) = _printed([*command, *args.extra], rf'"{args.split}_loss": "([\d.]+)"')
    return {
        "bits": float(found),
        "perplexity": 2 ** float(found),
        "tokens": int(data.record["binarised"][args.split]["tokens"]),
        "mask_prob": task["mask_prob"],
        "seed": task["seed"],
    }


def _printed(command: Sequence[str], *patterns: str) -> list[str]:
    """Return the group of each pattern in what a command prints; ValueError where it fails."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(os.environ, PYTHONUNBUFFERED="1"),
        encoding="utf-8",
        errors="backslashreplace",
        check=False,
    )
    if done.returncode:
        lines = done.stdout.splitlines(keepends=True)
        raise ValueError(failure(command[0], done.returncode, lines))
    found = [re.search(pattern, done.stdout) for pattern in patterns]
    if None in found:
        raise ValueError(f"no perplexity in what fairseq printed: {done.stdout[-300:]!r}")
    return [match[1] for match in found if match]


def failure(program: str, status: int, lines: Sequence[str]) -> str:
    """Return the last line of a failed program, and where its whole output was put."""
    with tempfile.NamedTemporaryFile(
        "w", prefix=f"{program}.", suffix=".log", delete=False, encoding="utf-8"
    ) as log:
        log.writelines(lines)
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    if status == -signal.SIGKILL:
        last += "; it was killed, for want of memory perhaps: set a smaller BATCH"
    return f"{program} failed (status {status}): {last} (log: {log.name})"


def describe(facts: dict[str, Any]) -> str:
    """Return one line for people."""
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
