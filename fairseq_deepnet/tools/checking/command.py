"""`deepnet check`: what a reviewer runs on someone's claim."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fairseq_deepnet.files import write_json
from fairseq_deepnet.schemes import SCHEMES
from fairseq_deepnet.tools import configs, fairseq_options
from fairseq_deepnet.tools.checking.inspection import inspect_model
from fairseq_deepnet.tools.checking.subject import Subject, from_checkpoint, from_options
from fairseq_deepnet.tools.checking.text import as_text
from fairseq_deepnet.tools.checkpoints.choice import choose_model

VOCABULARY: Final = 1000

EXAMPLES: Final = """
  deepnet check --arch deepnet_transformer --encoder-layers 18 --decoder-layers 18
  deepnet check --arch deepnet_transformer --residual-scheme admin --init stock
  deepnet check multi30k encoder-layers=12                 a config, and options that win
  deepnet check runs/multi30k                              a run: its best checkpoint
  deepnet check runs/multi30k/checkpoints/checkpoint1.pt
  deepnet check --arch transformer_wmt_en_de               fairseq's own, judged as what it is
  deepnet check --arch transformer --claim deepnorm        or as what somebody says it is

exit status: 0 as claimed, 1 something is off, 2 bad usage or a file that cannot be read
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `deepnet check`; what they do not know are fairseq-train's model options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "deepnet check [TARGET [key=value ...] | --arch NAME] [options of fairseq-train]"
    parser.epilog = f"TARGET is a config, a run folder or a checkpoint:\n{EXAMPLES}"
    parser.allow_abbrev = False
    parser.add_argument("--arch", help="check a new model of this arch")
    parser.add_argument(
        "--claim",
        metavar="SCHEME",
        choices=list(SCHEMES),
        help=f"judge it as this scheme instead of what it says itself: {', '.join(SCHEMES)}",
    )
    parser.add_argument(
        "--vocabulary",
        type=int,
        default=VOCABULARY,
        metavar="N",
        help="entries of a new model's dictionary (%(default)s)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of a new model (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON too")

    def parse(words: Sequence[str] | None = None, namespace: object = None) -> argparse.Namespace:
        args, rest = parser.parse_known_args(words)
        args.rest = rest
        return args

    # so that any option of fairseq-train may be given, after the target
    parser.parse_args = parse  # type: ignore[assignment,method-assign]


def run(args: argparse.Namespace) -> int:
    """Print the report; 0 if all is as claimed, 1 if not."""
    if args.vocabulary < 16:
        raise ValueError(f"--vocabulary {args.vocabulary}: at least 16")
    subject = read_subject(args)
    found = inspect_model(
        subject.model,
        subject.text,
        subject.args,
        args.claim,
        subject.trained,
        subject.faults,
        subject.notes,
    )
    if args.json is not None:
        write_json(args.json, found.as_json())
    print(as_text(found))
    return 0 if found.is_fine else 1


def read_subject(args: argparse.Namespace) -> Subject:
    """The model that the command line names."""
    words: list[str] = args.rest
    target = words[0] if words and not words[0].startswith("-") and "=" not in words[0] else None
    rest = words[1:] if target is not None else words
    if target is None and args.arch is None:
        raise ValueError("say what to check: --arch NAME, a config, a run folder or a checkpoint")
    saved = None if target is None else find_checkpoint(target)
    if saved is not None:
        if rest or args.arch:
            extra = " ".join([f"--arch {args.arch}"] if args.arch else rest)
            raise ValueError(f"{extra}: a checkpoint says itself what it is; leave it out")
        return from_checkpoint(saved)
    config = configs.Config("the command line", {}, {})
    if target is not None:
        config = configs.load_config(target)
    if args.arch is not None:
        config.options["arch"] = args.arch
    pairs = [word for word in rest if "=" in word and not word.startswith("-")]
    config.options |= dict(configs.parse_override(pair) for pair in pairs)
    choosing = configs.to_arguments({"arch": config.options.get("arch", "deepnet_transformer")})
    others = [word for word in rest if word not in pairs]
    config.options |= fairseq_options.read_options(others, choosing)
    return from_options(config, args.vocabulary, args.seed)


def find_checkpoint(target: str) -> Path | None:
    """The checkpoint that a word stands for; None for a config.

    Raises FileNotFoundError for a word that is neither a config, nor a run, nor a checkpoint.
    """
    path = Path(target)
    if path.is_dir() or (path.is_file() and path.suffix not in (".yaml", ".yml")):
        return choose_model(path, 0).path
    try:
        configs.find_config(target)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{target} is no run folder and no checkpoint; {error}") from error
    return None
