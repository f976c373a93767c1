"""Command line of `deepnet check`, which compares a model with the scheme that it claims."""

import argparse
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from fairseq_deepnet.anatomy import find_stacks
from fairseq_deepnet.checkpoints import load_checkpoint, model_arguments, num_updates
from fairseq_deepnet.files import shown
from fairseq_deepnet.records import write_json
from fairseq_deepnet.schemes import SCHEMES, Side
from fairseq_deepnet.tools import configs, fairseq_options
from fairseq_deepnet.tools.checking.findings import Findings
from fairseq_deepnet.tools.checking.pipeline import compare, make_claim
from fairseq_deepnet.tools.standalone import build_from_arguments, usual_task
from fairseq_deepnet.tools.trained_model import choose_model

EXAMPLES: Final = """examples:

  deepnet check --arch deepnet_transformer encoder-layers=18 decoder-layers=18
  deepnet check multi30k encoder-layers=12                 a config, changed by options
  deepnet check runs/multi30k                              a run's best checkpoint
  deepnet check runs/multi30k/checkpoints/checkpoint1.pt
  deepnet check --arch transformer --claim deepnorm        fairseq's model, judged as DeepNorm

exit status: 0 as claimed, 1 not as claimed, 2 bad usage or an unreadable file
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet check`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    add, default = parser.add_argument, "(%(default)s)"
    words = "a config, run folder or checkpoint, and options for a new model"
    add("words", nargs="*", metavar="TARGET key=value", help=words)
    add("--arch", help="check a new model of this architecture")
    claims = f"judge the model as this scheme, not its own: {', '.join(SCHEMES)}"
    add("--claim", metavar="SCHEME", choices=list(SCHEMES), help=claims)
    entries = f"dictionary entries of a new model {default}"
    add("--vocabulary", type=int, default=1000, metavar="N", help=entries)
    add("--seed", type=int, default=1, help=f"random seed of a new model {default}")
    add("--json", type=Path, metavar="FILE", help="also write the report as JSON")


def run(args: Namespace) -> int:
    """Print the report; return 0 if the model matches the claimed scheme, otherwise 1."""
    words: list[str] = args.words
    target = words[0] if words and "=" not in words[0] else None
    if target is None and args.arch is None:
        raise ValueError("name a model: --arch NAME, a config, a run folder or a checkpoint")
    path = Path(target or "")
    is_saved = path.exists() or len(path.parts) > 1  # a config in configs/ is named without folder
    if target is None or not is_saved or path.suffix in (".yaml", ".yml"):
        findings = check_new(target, words[target is not None :], args)
    else:
        saved = choose_model(path, 0).path
        if words[1:] or args.arch:
            raise ValueError(f"{target}: a checkpoint contains its options; remove the others")
        findings = check_saved(saved, args.claim)
    if args.json is not None:
        write_json(args.json, findings.as_json())
    print(findings)
    return 0 if findings.is_fine else 1


def check_new(target: str | None, words: Sequence[str], args: Namespace) -> Findings:
    """Check a new model as fairseq-train would build it, except for the vocabulary size.

    Raises:
        ValueError: if fairseq or the model rejects an option.
    """
    changes = [f"arch={args.arch}"] if args.arch else []
    config = configs.Config("command line", {}, {})
    if target is not None:
        config = configs.load_config(target)
    configs.override(config, dict(map(configs.parse_override, [*changes, *words])), "command line")
    options = config.options
    if "arch" not in options:
        raise ValueError(f"{config.name} names no arch; add arch=deepnet_transformer")
    if args.vocabulary < 16:
        raise ValueError(f"--vocabulary {args.vocabulary}: the minimum is 16")
    options.setdefault("task", usual_task(str(options["arch"])))
    configs.check_options(config)
    parsed = fairseq_options.parse_training(["DATA", *configs.to_arguments(options)])
    torch.manual_seed(args.seed)
    model = build_from_arguments(parsed, args.vocabulary)
    stacks = find_stacks(model)
    subject = f"{parsed.arch}, new (seed {args.seed}), {args.vocabulary:,} words"
    return compare(model, stacks, make_claim(model, parsed, stacks, args.claim), None, subject)


def check_saved(path: Path, claim: str | None) -> Findings:
    """Check the model in a checkpoint.

    Raises:
        ValueError: if the checkpoint is damaged or does not match its own arguments.
    """
    state = load_checkpoint(path, entire=True)
    args = model_arguments(state)
    if args is None:
        raise ValueError(f"{path} has no model options (neither cfg nor args)")
    args.arch = getattr(args, "arch", None) or getattr(args, "_name", None)
    tensors: dict[str, Tensor] = state["model"]
    tables = {name: t for name, t in tensors.items() if name.endswith("embed_tokens.weight")}
    sides = [[t for name, t in tables.items() if side.value in name.split(".")] for side in Side]
    sizes = [side[-1].size(0) for side in sides if side]
    if not sizes or not isinstance(args.arch, str):
        raise ValueError(f"{path} names no arch, or has no embed_tokens.weight")
    model = build_from_arguments(args, *sizes)
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        problem = " ".join(str(error).split())
        raise ValueError(f"{path} does not match its own arguments: {problem}") from error
    updates, has_history = num_updates(state), bool(state.get("optimizer_history"))
    trained = not has_history or updates > 0 or "averaged" in state
    age = f"after {updates:,} updates" if has_history else "with no record of updates"
    stacks = find_stacks(model)
    claimed = make_claim(model, args, stacks, claim)
    return compare(model, stacks, claimed, None, f"{args.arch}, {shown(path)} ({age})", trained)
