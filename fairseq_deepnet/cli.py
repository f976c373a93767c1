"""The command `deepnet SUBCOMMAND`, which imports only the module of its subcommand."""

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Final

from fairseq_deepnet.errors import Parser, did_you_mean, in_one_line

GROUPS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "data": {
        "download": ("tools.corpora.download", "download a corpus and verify it"),
        "preprocess": ("tools.corpora.preprocess", "build a data folder from raw text"),
    },
    "training": {
        "plan": ("tools.planning.plan", "estimate the memory of a run; find options that fit"),
        "train": ("tools.training.train", "train the model of a config; resume a stopped run"),
        "options": ("tools.fairseq_options", "list the options of an architecture"),
    },
    "a trained model": {
        "evaluate": ("tools.evaluation.evaluate", "translate a test set and score it"),
        "translate": ("tools.translation.translate", "translate raw text"),
        "perplexity": ("tools.evaluation.perplexity", "compute the perplexity of a language model"),
        "average": ("tools.trained_model", "average several checkpoints"),
        "export": ("tools.export.export", "export to fairseq, CTranslate2 or Hugging Face"),
    },
    "inspection": {
        "check": ("tools.checking.check_command", "check whether a model implements its scheme"),
        "plot": ("tools.plotting.plot", "plot losses and measurements by layer"),
        "report": ("experiments.report", "print tables of runs beside the paper's results"),
    },
    "many runs": {
        "quickstart": ("experiments.quickstart", "compare DeepNorm and Post-LN within minutes"),
        "sweep": ("experiments.sweep", "train and score all cells of a table"),
        "analysis": ("experiments.analysis", "draw the paper's figures 3, 4 and 5 beside ours"),
    },
    "many directions": {
        "m2m": ("experiments.m2m", "score Flores-101, TED, OPUS-100 or WMT as the paper does")
    },
}
"""Subcommands by task, each with its module in this package and one line of help.

Each module provides add_arguments(parser) and run(args) -> int. If it declares the argument
`extra`, that argument receives the words after --.
"""

SUBCOMMANDS: Final = {name: entry for group in GROUPS.values() for name, entry in group.items()}


def _overview() -> str:
    width = max(map(len, SUBCOMMANDS))
    lines = ["usage: deepnet SUBCOMMAND [arguments]"]
    for task, group in GROUPS.items():
        lines += ["", f"{task}:", *(f"  {n:<{width}}  {text}" for n, (_, text) in group.items())]
    return "\n".join([*lines, "", "deepnet SUBCOMMAND --help lists its arguments"])


def words_of(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> list[str]:
    """Return the options set by environment variables; GPUS=8 becomes --gpus=8.

    Variables are read only for scripts (`deepnet SUBCOMMAND --variables`), because a user's shell
    may export DATA or OUT for another purpose. An empty variable counts as unset.

    Raises:
        ValueError: if a switch's variable is neither 0 nor 1, or DRY_RUN=1 but no dry run exists.
    """
    if environment.get("DRY_RUN", "0") != "0" and "--dry-run" not in parser._option_string_actions:
        raise ValueError(
            f"DRY_RUN is {environment['DRY_RUN']!r}, but this command has no dry run; unset it"
        )
    words = []
    for option, action in parser._option_string_actions.items():
        text = environment.get(variable_of(option))
        if not text or option in ("-h", "--help") or action.nargs in ("+", "*"):
            continue
        if action.nargs != 0:
            words.append(f"{option}={text}")
        elif text not in ("0", "1"):
            raise ValueError(f"{variable_of(option)} is {text!r}; it must be 0 or 1")
        else:
            words += [option] * int(text)
    return words


def variable_of(option: str) -> str:
    """Return the environment variable for an option, such as CPU_PROCESSES for --cpu-processes."""
    return option.lstrip("-").upper().replace("-", "_")


def typed(name: str) -> str:
    """Return the prefix of error messages: the script or subcommand that the user ran."""
    script = os.environ.get("DEEPNET_COMMAND")
    return f"[{script}]" if script else f"deepnet {name}:"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit status (2 if the user can fix the error)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:  # a program, whose processes must not import from the working folder
        os.environ["PYTHONSAFEPATH"] = "1"
    if not words or words[0] in ("-h", "--help"):
        with contextlib.suppress(BrokenPipeError):  # deepnet | head
            print(_overview(), flush=True)
        return 0 if words else 2
    name, rest = words[0], words[1:]
    if name not in SUBCOMMANDS:
        hint = did_you_mean(name, SUBCOMMANDS) or f"; choose from {', '.join(SUBCOMMANDS)}"
        print(f"deepnet: error: no subcommand {name!r}{hint}", file=sys.stderr)
        return 2
    try:
        return _run(name, rest)
    except BrokenPipeError:
        return 1
    except (ValueError, OSError) as error:
        line = str(error) if isinstance(error, ValueError) else in_one_line(error)
        if line is None:
            raise
        print(f"{typed(name)} error: {line}", file=sys.stderr)
        return 2
    except BrokenExecutor:
        text = "a process was killed, perhaps for lack of memory; use fewer processes"
        print(f"{typed(name)} error: {text}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # even while torch and fairseq are imported
        print(f"{typed(name)} interrupted", file=sys.stderr)
        return 130


def _run(name: str, words: Sequence[str]) -> int:
    module_name, help_line = SUBCOMMANDS[name]
    # fairseq's programs are beside this Python, even if its environment is not activated
    folders = [os.environ.get("PATH", ""), str(Path(sys.executable).parent)]
    os.environ["PATH"] = os.pathsep.join(filter(None, folders))
    module = importlib.import_module(f"fairseq_deepnet.{module_name}")
    parser = Parser(prog=f"deepnet {name}", description=help_line)
    module.add_arguments(parser)
    if words[:1] == ["--variables"]:  # a script
        words = [*words_of(parser, os.environ), *words[1:]]
    return int(module.run(parser.parse(words)))


if __name__ == "__main__":
    sys.exit(main())
