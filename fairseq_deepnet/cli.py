"""The command `deepnet SUBCOMMAND`: a table of modules, each loaded only when it is asked for."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final

from fairseq_deepnet.former_names import FORMER_STAGES, of_today, subcommand_of_today
from fairseq_deepnet.tools import variables

GROUPS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "data": {
        "download": ("tools.corpora.download", "a corpus: resumable, verified, from mirrors"),
        "preprocess": ("tools.corpora.preprocess", "raw text to what fairseq-train reads"),
    },
    "training": {
        "plan": ("tools.planning.plan", "parameters, memory and time; what makes it fit"),
        "train": ("tools.training.train", "train as a config says, and see it to its end"),
        "args": ("tools.configs", "the fairseq-train arguments that a config stands for"),
        "options": ("tools.fairseq_options", "the options of an architecture"),
    },
    "a trained model": {
        "evaluate": ("tools.evaluation.evaluate", "translate a test set and score it"),
        "translate": ("tools.translation.translate", "raw text in, text out"),
        "perplexity": ("tools.evaluation.perplexity", "how well a language model predicts a text"),
        "score": ("tools.evaluation.scoring", "sacreBLEU and chrF of a file of hypotheses"),
        "average": ("tools.trained_model", "the mean of several checkpoints"),
        "join": ("tools.joining", "one file of a checkpoint that --use-sharded-state has split"),
        "export": ("tools.export.export", "for stock fairseq, CTranslate2 or Hugging Face"),
    },
    "looking into it": {
        "check": ("tools.checking.check_command", "is a model what it is said to be? measured"),
        "plot": ("tools.plotting.plot", "losses, scores, what was measured, layer by layer"),
        "report": ("experiments.report", "runs as tables, beside the paper's numbers"),
    },
    "many runs": {
        "sweep": ("experiments.sweep", "train and score the cells of a table"),
        "analysis": ("experiments.analysis", "the paper's figures 3, 4 and 5 beside ours"),
    },
    "many directions": {
        "m2m": ("experiments.m2m", "score Flores-101, TED, OPUS-100 or WMT as the paper does"),
        "directions": ("experiments.directions", "table and averages of what was scored"),
    },
}
"""Task -> name -> (module within this package, one line of help).

A module offers add_arguments(parser) and run(args) -> int, and parse(parser, words) -> args where
argparse by itself would not do.
"""

SUBCOMMANDS: Final = {name: entry for group in GROUPS.values() for name, entry in group.items()}


def _overview() -> str:
    width = max(map(len, SUBCOMMANDS))
    lines = ["usage: deepnet SUBCOMMAND [arguments]"]
    for task, group in GROUPS.items():
        lines += ["", f"{task}:", *(f"  {n:<{width}}  {text}" for n, (_, text) in group.items())]
    return "\n".join([*lines, "", "deepnet SUBCOMMAND --help says more"])


def typed(name: str) -> str:
    """Return the command that a user has typed to run a subcommand: a script says its name."""
    script = os.environ.get("DEEPNET_COMMAND")
    return f"[{script}]" if script else f"deepnet {name}:"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status; 2 for what the user can mend."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        with contextlib.suppress(BrokenPipeError):  # deepnet | head
            print(_overview(), flush=True)
        return 0 if words else 2
    words = subcommand_of_today(words)
    name, rest = words[0], of_today(words[0], words[1:])
    if name not in SUBCOMMANDS:
        where = f"choose from {', '.join(SUBCOMMANDS)}"
        if name in FORMER_STAGES:
            where = f"it is a stage of `deepnet {FORMER_STAGES[name]}` now"
        print(f"deepnet: error: no subcommand {name!r}; {where}", file=sys.stderr)
        return 2
    module_name, help_line = SUBCOMMANDS[name]
    module = importlib.import_module(f"fairseq_deepnet.{module_name}")
    parser = argparse.ArgumentParser(prog=f"deepnet {name}", description=help_line)
    module.add_arguments(parser)
    parse = getattr(module, "parse", argparse.ArgumentParser.parse_args)
    try:
        if rest[:1] == ["--variables"] and name in variables.OF_SUBCOMMAND:  # a script
            rest = [*variables.options(name, os.environ), *rest[1:]]
        return int(module.run(parse(parser, rest)))
    except BrokenPipeError:
        return 1
    except ValueError as error:
        print(f"{typed(name)} error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        from fairseq_deepnet.errors import describe_os_error

        print(f"{typed(name)} error: {describe_os_error(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{typed(name)} interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
