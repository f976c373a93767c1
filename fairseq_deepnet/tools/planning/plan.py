"""`deepnet plan`: parameters, memory and operations of a training run.

Modules that load torch are imported inside functions, so that help and usage errors are fast.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tabulate import tabulate

from fairseq_deepnet.files import ROOT
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.devices import DEVICE_GIB, machine_gib

if TYPE_CHECKING:
    from fairseq_deepnet.tools.planning.advice import Step
    from fairseq_deepnet.tools.planning.estimates import Plan

ARCH_DEFAULTS: Final = ("max-tokens=4096", "share-all-embeddings=true")
"""Options that --arch adds to configs/base.yaml."""
HALF: Final = ("fp16", "bf16", "memory-efficient-fp16", "memory-efficient-bf16")
GIB: Final = 2**30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet plan`."""
    add, default = parser.add_argument, "(%(default)s)"
    words = "a YAML file or a name in configs/, and options that win"
    add("words", nargs="*", metavar="CONFIG key=value", help=words)
    add("--arch", help="a named shape, with configs/base.yaml where no CONFIG is")
    add("--gpus", type=int, default=1, help=f"devices in all; 0 is the CPU {default}")
    of_one = f"of one device ({DEVICE_GIB}; with --gpus 0 that of this machine)"
    add("--memory", type=float, metavar="GIB", help=of_one)
    entries = "entries of the dictionary, or of source and target"
    add("--vocabulary", metavar="N[,M]", help=entries)
    add("--data", type=Path, help="the data folder, for its dictionaries")
    add("--length", type=int, default=32, help=f"subwords of a sentence, as assumed {default}")
    add("--json", action="store_true", help="JSON on stdout")


def run(args: argparse.Namespace) -> int:
    """Print the plan; return 0 if the run fits, possibly with other options, else 1."""
    config, notes = read_config(args)

    from fairseq_deepnet.tools.planning.advice import advise
    from fairseq_deepnet.tools.planning.estimates import estimate, vocabulary_of

    configs.check_options(config)
    if args.data is not None and not args.data.is_dir():
        raise FileNotFoundError(f"no data folder {args.data}")
    usual = config.recipe.get("data")
    data = args.data or (None if usual is None else ROOT / str(usual))
    sizes = vocabulary_of(config, data, args.vocabulary)
    memory = args.memory
    if memory is None:
        memory = DEVICE_GIB if args.gpus else machine_gib()
    plan = estimate(config, args.gpus, memory, sizes, args.length)
    steps = advise(plan)
    if args.json:
        print(json.dumps(as_json(plan, steps), indent=2))
    else:
        print(as_text(plan, steps, notes))
    return 0 if steps[-1].plan.fits else 1


def read_config(args: argparse.Namespace) -> tuple[configs.Config, list[str]]:
    """Return the config of the arguments and --arch, and the assumptions made."""
    words, assumptions = list(args.words), []
    named = bool(words) and "=" not in words[0]
    if not named and args.arch is None:
        raise ValueError("give a config (a file, or a name in configs/) or --arch NAME")
    name, first = (words.pop(0), []) if named else ("base", list(ARCH_DEFAULTS))
    if args.arch is not None:
        first.append(f"arch={args.arch}")
        if first[:-1]:
            assumptions.append(f"configs/base.yaml and {' '.join(first[:-1])}, unless overridden")
    config = configs.load_config(name, [*first, *words])
    if args.gpus and not any(name in config.options for name in HALF):
        config.options["bf16"] = True
        assumptions.append("bf16, as scripts/train.sh trains on GPUs that can; fp32 is bf16=false")
    return config, assumptions


def as_text(plan: Plan, steps: list[Step], assumptions: list[str]) -> str:
    """Return the report: requirements, options that make the run fit, and assumptions."""
    training, content, rows = plan.training, as_json(plan, steps), []
    units = {"parameters": (1, ",.0f"), "memory_bytes": (GIB, ",.2f"), "flops": (1e12, ",.3f")}
    heads = {"parameters": "parameters", "memory_bytes": "GiB", "flops": "TFLOP per update"}
    for section, (unit, form) in units.items():
        rows.append(("", heads[section]))
        for name, value in content[section].items():
            if value and isinstance(value, int | float) and name not in ("largest", "tensors"):
                rows.append((name, f"{value / unit:{form}}"))
    table = tabulate(rows, tablefmt="plain", colalign=("left", "right"), disable_numparse=True)
    batch = f"{training.max_tokens:,} x update-freq {training.update_freq} x {training.devices}"
    facts = [f"{plan.model.arch}, {plan.model.scheme}"]
    facts.append(f"{training.tokens:,} tokens per side and update = {batch}")
    notes = "\n".join(["Assumed", *(f"  {note}" for note in [*assumptions, *_notes(plan)])])
    return "\n\n".join(["\n".join(facts), table, _verdict(plan, steps), notes])


def _verdict(plan: Plan, steps: list[Step]) -> str:
    from fairseq_deepnet.tools.planning.advice import OTHERS

    last, memory = steps[-1], f"{plan.memory_gib:.4g} GiB"
    if plan.fits:
        return f"It fits into {memory}: {plan.needed_gib:.2f} GiB, with allocator and process."
    lines = [f"It does not fit into {memory}. Tried:"]
    for step in steps:
        batch = f"{step.plan.training.max_tokens:,} x {step.plan.training.update_freq}"
        lines.append(f"  {step.plan.needed_gib:.1f} GiB: {step.name}, {batch}")
    if last.plan.fits:
        words = [f"{name}={value}" for name, value in last.options.items()]
        lines.append(f"It fits with: {' '.join(words)}")
    else:
        lines.append(f"None of them makes it fit: {OTHERS}.")
    return "\n".join(lines)


def _notes(plan: Plan) -> list[str]:
    from fairseq_deepnet.footprint import CRITERIONS

    notes = [f"sentences of {plan.length} subwords (--length); micro-batches are full"]
    if plan.model.is_stock:
        notes.append("activations of fairseq's own layers are counted as ours")
    if plan.training.criterion not in CRITERIONS:
        notes.append(f"{plan.training.criterion} is counted as label_smoothed_cross_entropy")
    return notes


def as_json(plan: Plan, steps: list[Step]) -> dict[str, Any]:
    """Return the report as plain values: bytes and operations."""
    last, passes = steps[-1], plan.training.update_freq * plan.training.devices
    counts = dataclasses.asdict(plan.counts)
    counts["layer"] = {side.value: number for side, number in plan.counts.layer.items()}
    return {
        "arch": plan.model.arch,
        "scheme": repr(plan.model.scheme),
        "vocabulary": list(plan.model.vocabulary),
        "length": plan.length,
        "parameters": counts | {"total": plan.counts.total},
        "training": dataclasses.asdict(plan.training),
        "memory_bytes": dataclasses.asdict(plan.memory) | {"peak": plan.memory.peak},
        "recomputed_layers": {s.value: plan.model.recomputed(s) for s in plan.model.layers},
        "flops": {name: number * passes for name, number in plan.flops.items()},
        "needed_gib": plan.needed_gib,
        "memory_gib": plan.memory_gib,
        "fits": plan.fits,
        "advice": {
            "fits": last.plan.fits,
            "options": last.options,
            "needed_gib": last.plan.needed_gib,
            "tried": [
                {
                    "step": step.name,
                    "max_tokens": step.plan.training.max_tokens,
                    "update_freq": step.plan.training.update_freq,
                    "needed_gib": step.plan.needed_gib,
                    "fits": step.plan.fits,
                }
                for step in steps
            ],
        },
    }
