"""`deepnet check`: measure a model and compare it with its claim, on the command line."""

from __future__ import annotations

import argparse
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from fairseq_deepnet.anatomy import find_stacks
from fairseq_deepnet.checkpoints import load_checkpoint, model_arguments, num_updates
from fairseq_deepnet.files import shown, write_json
from fairseq_deepnet.models.scheme_options import scheme_of
from fairseq_deepnet.schemes import SCHEMES, Side
from fairseq_deepnet.tools import configs, fairseq_options
from fairseq_deepnet.tools.checking.expected import make_claim
from fairseq_deepnet.tools.checking.findings import Fault, Findings
from fairseq_deepnet.tools.checking.pipeline import compare
from fairseq_deepnet.tools.standalone import build_from_arguments, usual_task
from fairseq_deepnet.tools.tables import listed
from fairseq_deepnet.tools.trained_model import choose_model

_LAYER: Final = re.compile(r"(?:.*\.)?(encoder|decoder)\.(?:.*\.)?layers\.(\d+)\.")

EXAMPLES: Final = """
  deepnet check --arch deepnet_transformer --encoder-layers 18 --decoder-layers 18
  deepnet check multi30k encoder-layers=12                 a config, and options that win
  deepnet check runs/multi30k                              a run: its best checkpoint
  deepnet check runs/multi30k/checkpoints/checkpoint1.pt
  deepnet check --arch transformer_wmt_en_de               fairseq's own, judged as what it is
  deepnet check --arch transformer --claim deepnorm        or as another scheme

exit status: 0 as claimed, 1 something is off, 2 bad usage or a file that cannot be read
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `deepnet check`; all others are fairseq-train's model options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "deepnet check [TARGET [key=value ...] | --arch NAME] [options of fairseq-train]"
    parser.epilog = f"TARGET is a config, a run folder or a checkpoint:\n{EXAMPLES}"
    parser.allow_abbrev = False
    add, default = parser.add_argument, "(%(default)s)"
    add("--arch", help="check a new model of this arch")
    claims = f"judge it as this scheme instead of its own: {', '.join(SCHEMES)}"
    add("--claim", metavar="SCHEME", choices=list(SCHEMES), help=claims)
    entries = f"entries of a new model's dictionary {default}"
    add("--vocabulary", type=int, default=1000, metavar="N", help=entries)
    add("--seed", type=int, default=1, help=f"of a new model {default}")
    add("--json", type=Path, metavar="FILE", help="write everything as JSON too")


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> Namespace:
    """Parse the command line; the target and any option of fairseq-train after it are the rest."""
    args, rest = parser.parse_known_args(words)
    args.rest = rest
    return args


def run(args: Namespace) -> int:
    """Print the report; return 0 if all is as claimed, 1 if not."""
    words: list[str] = args.rest
    target = words[0] if words and not words[0].startswith("-") and "=" not in words[0] else None
    rest = words if target is None else words[1:]
    path = Path(target or "")
    if target is None and args.arch is None:
        raise ValueError("say what to check: --arch NAME, a config, a run folder or a checkpoint")
    if target is None or not path.exists() or path.suffix in (".yaml", ".yml"):
        findings = check_new(read_config(target, args.arch, rest), args)
    elif rest or args.arch:
        extra = " ".join([f"--arch {args.arch}"] if args.arch else rest)
        raise ValueError(f"{extra}: a checkpoint says itself what it is; leave it out")
    else:
        findings = check_saved(choose_model(path, 0).path, args.claim)
    if args.json is not None:
        write_json(args.json, findings.as_json())
    print(findings)
    return 0 if findings.is_fine else 1


def read_config(target: str | None, arch: str | None, words: Sequence[str]) -> configs.Config:
    """Return the config called `target`, where there is one, with the options that win."""
    config = configs.Config("the command line", {}, {})
    if target is not None:
        config = configs.load_config(target)
    if arch is not None:
        config.options["arch"] = arch
    pairs = [word for word in words if "=" in word and not word.startswith("-")]
    config.options |= dict(configs.parse_override(pair) for pair in pairs)
    others = [word for word in words if word not in pairs]
    config.options |= fairseq_options.read_options(others)
    return config


def check_new(config: configs.Config, args: Namespace) -> Findings:
    """Check a new model as fairseq-train would build it, but for the size of its vocabulary.

    Raises:
        ValueError: for options that fairseq or its model refuses.
    """
    options = config.options
    if "arch" not in options:
        raise ValueError(f"{config.name} names no arch; add arch=deepnet_transformer")
    if args.vocabulary < 16:
        raise ValueError(f"--vocabulary {args.vocabulary}: at least 16")
    options.setdefault("task", usual_task(str(options["arch"])))
    configs.check_options(config)
    given = fairseq_options.parse_training(["DATA", *configs.to_arguments(options)])
    torch.manual_seed(args.seed)
    model = build_from_arguments(given, args.vocabulary)
    stacks = find_stacks(model)
    subject = f"{given.arch}, new (seed {args.seed}), {args.vocabulary:,} words"
    return compare(model, stacks, make_claim(model, given, stacks, args.claim), None, subject)


def check_saved(path: Path, claim: str | None) -> Findings:
    """Check the model in a checkpoint, its record and its parameters' names.

    Raises:
        ValueError: for a damaged one, and for a model that cannot be built.
    """
    state = load_checkpoint(path, entire=True)
    args = model_arguments(state)
    if args is None:
        raise ValueError(f"{path} does not say how its model is built (neither cfg nor args)")
    args.arch = getattr(args, "arch", None) or getattr(args, "_name", None)
    tensors: dict[str, Tensor] = state["model"]
    tables = {name: t for name, t in tensors.items() if name.endswith("embed_tokens.weight")}
    sides = [[t for name, t in tables.items() if side.value in name.split(".")] for side in Side]
    sizes = [of_side[-1].size(0) for of_side in sides if of_side]
    if not sizes or not isinstance(args.arch, str):
        raise ValueError(f"{path} names no arch, or has no embed_tokens.weight")
    model = build_from_arguments(args, *sizes)
    try:
        missing, unexpected = model.load_state_dict(dict(tensors), strict=False)
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit its own arguments: {error}") from error
    due = "the parameters that its arguments describe"
    texts = ((missing, "not in the file"), (unexpected, "not in the model"))
    faults = [Fault("keys", listed(names), text, due) for names, text in texts if names]
    faults += check_record(args, tensors)
    updates, has_history = num_updates(state), bool(state.get("optimizer_history"))
    trained = not has_history or updates > 0 or "averaged" in state
    age = f"after {updates:,} updates" if has_history else "with no record of updates"
    stacks = find_stacks(model)
    claimed = make_claim(model, args, stacks, claim)
    findings = compare(model, stacks, claimed, None, f"{args.arch}, {shown(path)} ({age})", trained)
    findings.faults[:0] = faults
    if trained:
        findings.notes.append("weights were trained: their deviations are shown, not judged")
    return findings


def check_record(args: Namespace, tensors: Mapping[str, Tensor]) -> list[Fault]:
    """Compare the record that our checkpoints carry with its formula and the layers."""
    if not hasattr(args, "residual_scheme"):
        return []
    record = getattr(args, "residual_record", None)
    if record is None:
        text = "no residual_record: alpha would follow the depth at load time"
        return [Fault("record", "arguments", text, "the alphas that it was trained with")]
    layers = dict.fromkeys(Side, 0)
    for match in filter(None, map(_LAYER.match, tensors)):
        layers[Side(match[1])] = max(layers[Side(match[1])], int(match[2]) + 1)
    faults = []
    for side, depth in zip(Side, record["depths"], strict=True):
        if depth != layers[side]:
            texts = f"trained with {depth} layers", f"the {layers[side]} in the file"
            faults.append(Fault("record", f"{side.value} record", *texts))
    scheme = scheme_of(args)
    formula = type(scheme)(scheme.depths, variant=scheme.variant).alphas
    for side, alpha in scheme.alphas.items():
        if abs(alpha / formula[side] - 1) > 1e-6:
            depths = f"{scheme.name} for {scheme.depths.encoder}L-{scheme.depths.decoder}L"
            due = f"{formula[side]:.6g} ({depths})"
            faults.append(Fault("record", f"{side.value} record", f"alpha {alpha:.6g}", due))
    return faults
