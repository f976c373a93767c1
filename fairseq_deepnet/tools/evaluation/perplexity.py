"""`deepnet perplexity`: the perplexity of a causal or masked language model on a split of its data.

A perplexity per subword depends on the subword model. For causal models, the command therefore also
reports a perplexity per word of the raw text, which is comparable across subword models. Words are
separated by spaces, and each line end counts as a word. The perplexity of a masked model covers
only the masked subwords, chosen as in training, so it does not measure the text's probability.
"""

import argparse
import re
import subprocess
from pathlib import Path
from typing import Any

from fairseq_deepnet.checkpoints import load_checkpoint, num_updates
from fairseq_deepnet.files import PACKAGE, say, shown
from fairseq_deepnet.records import fingerprint, made_now, record_of, sha256, write_json
from fairseq_deepnet.tools import trained_model
from fairseq_deepnet.tools.corpora.folder import MONOLINGUAL_TASKS, DataFolder
from fairseq_deepnet.tools.corpora.text import count_words, read_lines
from fairseq_deepnet.tools.scores import option_words, score_name
from fairseq_deepnet.tools.trained_model import TrainedModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet perplexity`."""
    parser.add_argument("target", type=Path, help="run folder or checkpoint")
    extra = "options of fairseq-eval-lm or fairseq-validate, after --"
    parser.add_argument("extra", nargs="*", default=[], help=extra)
    parser.add_argument("--data", type=Path, help="data folder (the run's)")
    parser.add_argument("--split", default="test", help="split to score (test)")
    average = "average the last N checkpoints (0)"
    parser.add_argument("--average", type=int, default=0, metavar="N", help=average)
    parser.add_argument("--batch", type=int, default=4000, help="tokens per batch (4000)")
    gpus = "0 uses the CPU, other values one GPU if there is one (all)"
    parser.add_argument("--gpus", default="all", help=gpus)


def run(args: argparse.Namespace) -> int:
    """Print the perplexity; measure and record it first, unless there is an up-to-date record."""
    model = trained_model.choose_model(args.target, args.average)
    task = trained_model.task_options(model.sources[-1])
    task["_name"] = task.get("_name") or task.get("task")
    if task["_name"] not in MONOLINGUAL_TASKS:
        raise ValueError(f"{shown(model.path)} is not a language model; run deepnet evaluate")
    data = trained_model.find_data(model, args.data)
    binarised = data.path / f"{args.split}.bin"
    if not data.is_monolingual or not binarised.is_file():
        raise ValueError(f"{shown(data.path)} has no monolingual {args.split} text")
    data.refuse_changed((binarised.name, f"text/{args.split}.{data.languages[0]}"))
    other = None if trained_model.is_own_data(model, data.path) else data.path
    words = [args.split, model.path.stem, "perplexity", option_words(args.extra)]
    record = model.scores / f"{score_name(words, other)}.json"
    request = {
        "checkpoints": [fingerprint(path) for path in model.sources],
        "data": {name: sha256(data.path / name) for name in (binarised.name, "dict.txt")},
        "split": args.split,
        "options": args.extra,
    }
    facts = record_of(record, request, "remove it to measure again")
    if facts is None:
        facts = measure(args, model, data, task) | {"request": request}
        model.refuse_replaced(request["checkpoints"])
        record.parent.mkdir(parents=True, exist_ok=True)
        write_json(record, facts)
    say(f"recorded: {shown(record)}")
    masked = f" masked ({100 * facts['mask_prob']:g} %)" if "mask_prob" in facts else ""
    per_word = facts.get("word_perplexity")
    skipped = f" ({facts['skipped']} too long and skipped)" if "skipped" in facts else ""
    print(
        f"perplexity {facts['perplexity']:.2f} per{masked} subword ({facts['bits']:.3f} bits)"
        f"{f', {per_word:.2f} per word' if per_word else ''}: {args.split}, {facts['lines']:,}"
        f" lines{skipped}, {facts['tokens']:,} subwords, {facts['model']}"
        f" (update {facts['updates']:,})"
    )
    return 0


def measure(
    args: argparse.Namespace, model: TrainedModel, data: DataFolder, task: dict[str, Any]
) -> dict[str, Any]:
    """Run fairseq-eval-lm, or fairseq-validate for a masked model; return the record."""
    state = load_checkpoint(model.make())
    is_masked = task["_name"] == "masked_lm"
    command = ["fairseq-validate" if is_masked else "fairseq-eval-lm", str(data.path.resolve())]
    command += ["--user-dir", str(PACKAGE), "--path", str(model.path.resolve())]
    command += ["--task", task["_name"], "--max-tokens", str(args.batch)]
    command += ["--distributed-world-size", "1", *(["--cpu"] if args.gpus == "0" else [])]
    if is_masked:  # fairseq-validate uses the masking options and the seed of training
        command += ["--valid-subset", args.split, "--log-format", "json"]
        pattern = rf'"{args.split}_loss": "([\d.]+)"'
    else:  # fairseq-eval-lm needs the sample format on its command line
        command += ["--gen-subset", args.split, "--log-format", "none"]
        for name in ("sample_break_mode", "tokens_per_sample"):
            command += [f"--{name.replace('_', '-')}", str(task[name])]
        command += ["--add-bos-token"] if task.get("add_bos_token") else []
        pattern = r"Loss \(base 2\): ([\d.]+), Perplexity: [\d.]+"
    command += args.extra
    process = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    match = re.search(pattern, output := f"{process.stdout}{process.stderr}")
    if process.returncode or match is None:
        raise ValueError(f"{command[0]} ended with status {process.returncode}: {output[-1000:]}")
    bits, tokens = float(match[1]), int(data.record["binarised"][args.split]["tokens"])
    if is_masked:
        chosen = argparse.ArgumentParser(add_help=False)
        chosen.add_argument("--mask-prob", type=float, default=task["mask_prob"])
        facts: dict[str, Any] = {"mask_prob": chosen.parse_known_args(args.extra)[0].mask_prob}
        if skipped := re.search(r"([\d,]+) samples have invalid sizes", output):
            facts["skipped"] = skipped[1]
    else:
        seen = re.search(r"Evaluated ([\d,]+) tokens", output)
        if seen and int(seen[1].replace(",", "")) < tokens:
            raise ValueError(f"scored {seen[1]} of {tokens:,} subwords; leave out --shorten-method")
        text = read_lines(data.path / "text" / f"{args.split}.{data.languages[0]}")
        words = sum(count_words(line) + 1 for line in text)
        facts = {"word_perplexity": 2 ** (bits * tokens / words), "words": words}
    return facts | {
        "bits": bits,
        "perplexity": 2**bits,
        "tokens": tokens,
        "model": shown(model.path),
        "averaged": state.get("averaged"),
        "updates": num_updates(state),
        "split": args.split,
        "lines": data.record["lines"][args.split],
        **made_now(),
    }
