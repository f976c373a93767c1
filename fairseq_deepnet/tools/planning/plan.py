"""Command line of `deepnet plan`, which estimates a training run's memory and operations.

Modules that load torch are imported inside functions, so that help and usage errors appear quickly.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tabulate import tabulate

from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.devices import DEVICE_GIB, machine_gib

if TYPE_CHECKING:
    from fairseq_deepnet.tools.planning.estimates import Plan, Step

ARCH_DEFAULTS: Final = ("max-tokens=4096", "share-all-embeddings=true")
"""Options that --arch adds to configs/base.yaml."""
HALF: Final = ("fp16", "bf16", "memory-efficient-fp16", "memory-efficient-bf16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet plan`."""
    add, default = parser.add_argument, "(%(default)s)"
    words = "a YAML file or a name in configs/, and options that override it"
    add("words", nargs="*", metavar="CONFIG key=value", help=words)
    add("--arch", help="an architecture; without CONFIG, configs/base.yaml sets the other options")
    add("--gpus", type=int, default=1, help=f"total number of GPUs; 0 plans for the CPU {default}")
    memory = f"memory of one device ({DEVICE_GIB}, an 80 GB GPU; with --gpus 0, this machine's)"
    add("--memory", type=float, metavar="GIB", help=memory)
    entries = "entries in the dictionary, or in the source and target dictionaries"
    add("--vocabulary", metavar="N[,M]", help=entries)
    add("--data", type=Path, help="data folder with the dictionaries")
    add("--length", type=int, default=32, help=f"assumed subwords per sentence {default}")


def run(args: argparse.Namespace) -> int:
    """Print the plan; return 0 if the run fits as it is or with other options, and 1 otherwise."""
    config, notes = read_config(args)

    from fairseq_deepnet.tools.planning.estimates import advise, estimate, vocabulary_of

    configs.check_options(config)
    data = args.data or (config.data if config.data and config.data.is_dir() else None)
    if data is not None and not (args.vocabulary or (data / "corpus.json").is_file()):
        raise FileNotFoundError(
            f"{data} has no corpus.json; give its dictionaries' sizes with --vocabulary N,M"
        )
    sizes = vocabulary_of(config, data, args.vocabulary)
    memory = args.memory
    if memory is None:
        memory = DEVICE_GIB if args.gpus else machine_gib()
    plan = estimate(config, args.gpus, memory, sizes, args.length)
    steps = advise(plan)
    print(as_text(plan, steps, notes))
    return 0 if steps[-1].plan.fits else 1


def read_config(args: argparse.Namespace) -> tuple[configs.Config, list[str]]:
    """Return the config with overrides applied, and a list of assumptions."""
    words, assumptions = list(args.words), []
    if words and "=" not in words[0]:
        name = words.pop(0)
    elif args.arch is not None:
        name, words = "base", [*ARCH_DEFAULTS, *words]
        assumptions.append(f"configs/base.yaml and {' '.join(ARCH_DEFAULTS)}, unless overridden")
    else:
        raise ValueError("name a config (a file, or a name in configs/), or add --arch NAME")
    arch = [] if args.arch is None else [f"arch={args.arch}"]
    config = configs.load_config(name, [*arch, *words])
    if args.gpus and not any(name in config.options for name in HALF):
        config.options["bf16"] = True
        assumptions.append(
            "bf16, as in scripts/train.sh on GPUs that support it (bf16=false: fp32)"
        )
    return config, assumptions


def as_text(plan: Plan, steps: list[Step], assumptions: list[str]) -> str:
    """Return the report: requirements, options that make the run fit, and assumptions."""
    from fairseq_deepnet.footprint import CRITERIONS
    from fairseq_deepnet.footprint.memory import GIB, MEANINGS

    training, rows = plan.training, []
    passes = training.update_freq * training.devices
    sections = {
        "parameters": (vars(plan.counts) | {"total": plan.counts.total}, 1, ",.0f"),
        "GiB": (vars(plan.memory) | {"peak": plan.memory.peak}, GIB, ",.2f"),
        "TFLOP per update": (plan.flops, 1e12 / passes, ",.3f"),
    }
    for head, (numbers, unit, form) in sections.items():
        rows.append(("", head, ""))
        for name, value in numbers.items():
            if value and isinstance(value, int | float) and name not in ("largest", "tensors"):
                meaning = MEANINGS.get(name, "") if head == "GiB" else ""
                rows.append((name, f"{value / unit:{form}}", meaning))
    columns = ("left", "right", "left")
    table = tabulate(rows, tablefmt="plain", colalign=columns, disable_numparse=True)
    device = f"{training.gpus} GPU{'s' * (training.gpus > 1)}" if training.gpus else "the CPU"
    batch = f"{training.max_tokens:,} x update-freq {training.update_freq} x {training.devices}"
    facts = [
        f"{plan.model.arch}, {plan.model.scheme}",
        f"planned for {device} with {plan.memory_gib:.4g} GiB (change with --gpus and --memory)",
        f"{training.tokens:,} tokens per side and update = {batch}",
    ]
    notes = [
        *assumptions,
        f"full micro-batches of sentences with {plan.length} subwords (--length)",
    ]
    if plan.model.is_stock:
        notes.append("activations of fairseq's layers are estimated with our layers' formulas")
    if training.criterion not in CRITERIONS:
        notes.append(f"{training.criterion} is estimated as label_smoothed_cross_entropy")
    end = "\n  ".join(["Assumptions", *notes])
    return "\n\n".join(["\n".join(facts), table, _verdict(plan, steps), end])


def _verdict(plan: Plan, steps: list[Step]) -> str:
    last, memory = steps[-1], f"{plan.memory_gib:.4g} GiB"
    needed = f"{plan.needed_gib:.2f} GiB (the peak, the allocator and the process)"
    if plan.fits:
        return f"The run needs {needed} and fits into {memory}."
    lines = [f"The run needs {needed} and does not fit into {memory}. Tried:"]
    for step in steps:
        batch = f"{step.plan.training.max_tokens:,} x {step.plan.training.update_freq}"
        lines.append(f"  {step.plan.needed_gib:.1f} GiB: {step.name}, {batch}")
    if last.plan.fits:
        words = [f"{name}={value}" for name, value in last.options.items()]
        lines.append(f"The run fits with: {' '.join(words)}")
    else:
        lines.append("The run fits with none of these. Use more devices, more memory or a smaller")
        lines.append("model. --bf16, --memory-efficient-bf16 and --optimizer adafactor also need")
        lines.append("less memory, but change the update.")
    return "\n".join(lines)
