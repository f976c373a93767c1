"""`deepnet plan`: what a training needs, before it starts."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Final

from fairseq_deepnet.files import ROOT
from fairseq_deepnet.footprint.memory import SENTENCE_LENGTH
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.devices import DEVICE_GIB, machine_gib
from fairseq_deepnet.tools.planning import compute, paper_models, report, vocabulary
from fairseq_deepnet.tools.planning.advice import advise
from fairseq_deepnet.tools.planning.estimates import Plan, estimate, require_plannable
from fairseq_deepnet.tools.training import launch

ARCH_DEFAULTS: Final = ("max-tokens=4096", "share-all-embeddings=true")
"""What --arch adds to configs/base.yaml."""

HALF: Final = ("fp16", "bf16", "memory-efficient-fp16", "memory-efficient-bf16")


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
    auto = "auto: as the options say, else bf16 on GPUs, as scripts/train.sh does"
    add("--precision", choices=launch.PRECISIONS, default="auto", help=auto)
    add("--length", type=int, default=SENTENCE_LENGTH, help=f"subwords of a sentence {default}")
    add("--teraflops", type=float, help="peak of one device in that precision")
    measured = "measure this machine's matrix products instead"
    add("--measure", action="store_true", help=measured)
    share = (
        f"share of the peak that training reaches ({compute.UTILISATION} of --teraflops,"
        f" {compute.GEMM_UTILISATION} of what --measure finds)"
    )
    add("--utilisation", type=float, help=share)
    add("--json", action="store_true", help="JSON on stdout")
    add("--paper", action="store_true", help="count the models of the DeepNet paper, and end")


def run(args: argparse.Namespace) -> int:
    """Print the plan; 0 if it fits as it is or with other options, 1 if nothing makes it fit."""
    if args.paper:
        print(json.dumps(paper_models.as_json(), indent=2) if args.json else paper_models.as_text())
        return 0
    if args.teraflops is not None and args.measure:
        raise ValueError("--teraflops and --measure contradict each other; give one")
    config, assumptions = read_config(args)
    require_plannable(str(config.options["arch"]))
    sizes, where = read_vocabulary(args, config)
    assumptions.append(f"vocabulary: {where}")
    plan, timed = make(args, config, sizes)
    advice = advise(plan)
    if timed:
        assumptions.append(
            f"{100 * plan.utilisation:.0f} % of {plan.teraflops:.4g} TFLOP/s are reached"
            f"{' (measured here)' if args.measure else ''}, and"
            f" {1e6 * compute.KERNEL_SECONDS:.0f} microseconds start a kernel"
        )
    else:
        assumptions.append("no time: give --teraflops (peak of a device) or --measure")
    if args.json:
        print(json.dumps(report.as_json(advice, timed), indent=2))
    else:
        print(report.as_text(advice, assumptions, timed))
    return 0 if advice.fits else 1


def read_config(args: argparse.Namespace) -> tuple[configs.Config, list[str]]:
    """Return the config that the words and --arch name, and what was assumed."""
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
    if args.precision == "auto":
        if args.gpus and not any(config.options.get(name) for name in HALF):
            config.options["bf16"] = True
            assumptions.append("bf16, as scripts/train.sh trains on GPUs that can")
    else:
        config.options = {k: v for k, v in config.options.items() if k not in HALF}
        if args.precision != "fp32":
            config.options[args.precision] = True
    configs.check_options(config)
    return config, assumptions


def read_vocabulary(
    args: argparse.Namespace, config: configs.Config
) -> tuple[tuple[int, int], str]:
    """Return the entries of both dictionaries, and where the numbers come from."""
    if args.vocabulary is not None:
        return vocabulary.parse(args.vocabulary), "as given"
    if args.data is not None:
        return vocabulary.from_folder(args.data), f"of {args.data}"
    usual = config.recipe.get("data")
    folder = None if usual is None else ROOT / str(usual)
    return vocabulary.of_recipe(config, folder)


def make(
    args: argparse.Namespace, config: configs.Config, sizes: tuple[int, int]
) -> tuple[Plan, bool]:
    """Return the plan, and whether its times mean anything."""
    teraflops, usual = args.teraflops, compute.UTILISATION
    if args.memory is None:
        args.memory = DEVICE_GIB if args.gpus else machine_gib()
    timed = args.measure or teraflops is not None
    if args.measure:
        draft = estimate(config, args.gpus, args.memory, 1, sizes, args.length)
        teraflops = compute.measure_teraflops(draft.model, draft.training)
        usual = compute.GEMM_UTILISATION
    utilisation = usual if args.utilisation is None else args.utilisation
    machine = (args.gpus, args.memory, teraflops if timed else 1)
    return estimate(config, *machine, sizes, args.length, utilisation), timed
