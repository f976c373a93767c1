"""The command `deepnet SUBCOMMAND`: a table of modules, each loaded only when it is asked for."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final

from fairseq_deepnet.former_names import FORMER_STAGES, of_today, subcommand_of_today

SUBCOMMANDS: Final[dict[str, tuple[str, str]]] = {
    "args": ("tools.configs", "print the fairseq-train arguments that a config stands for"),
    "options": (
        "tools.fairseq_options",
        "the options of an architecture, which fairseq-train --help leaves out",
    ),
    "check": ("tools.checking.command", "is a model or checkpoint what it is said to be? measured"),
    "plan": ("tools.planning.command", "parameters, memory and time of a training, and what fits"),
    "train": ("tools.training.command", "train as a config says, and see it to its end"),
    "average": ("tools.checkpoints.average", "average the weights of several checkpoints"),
    "export": ("tools.export.command", "a trained model for stock fairseq, or for CTranslate2"),
    "translate": (
        "tools.translation.command",
        "raw text in, text out, by a run or an exported model",
    ),
    "evaluate": (
        "tools.evaluation.command",
        "translate a test set with a run or checkpoint; score it",
    ),
    "score": ("tools.evaluation.scoring", "sacreBLEU and chrF of a file of hypotheses"),
    "perplexity": ("tools.evaluation.perplexity", "how well a language model predicts a test set"),
    "directions": ("experiments.directions", "table and averages of many directions"),
    "evaluation-set": (
        "tools.evaluation.sets",
        "text of Flores-101, TED, OPUS-100, WMT to be scored on",
    ),
    "download": ("tools.corpora.download", "download a corpus: resumable, verified, from mirrors"),
    "opus100": ("tools.corpora.opus100", "unpack OPUS-100 and write its table of pairs"),
    "preprocess": ("tools.corpora.preprocess", "raw text to what fairseq-train reads"),
    "iwslt14": ("tools.corpora.iwslt", "raw text out of the archive of IWSLT 2014"),
    "wmt17": ("tools.corpora.wmt", "raw text out of the archives of WMT 2017"),
    "plot": (
        "tools.plotting.plot",
        "draw runs: losses, scores, what was measured, layer by layer",
    ),
    "sweep": (
        "experiments.sweep",
        "train and score the cells of a table: the paper's, or a comparison",
    ),
    "analysis": (
        "experiments.analysis",
        "the paper's figures 3, 4 and 5 from monitored runs, beside its own",
    ),
    "report": (
        "experiments.report",
        "runs as tables, the paper's numbers beside ours, and as figures",
    ),
}
"""Name -> (module within this package, one line of help).

A module offers add_arguments and run, and INTERMIXED where options may stand between its files.
"""


def _overview() -> str:
    width = max(map(len, SUBCOMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in SUBCOMMANDS.items()]
    return "\n".join(
        [
            "usage: deepnet SUBCOMMAND [arguments]",
            "",
            *lines,
            "",
            "deepnet SUBCOMMAND --help says more",
        ]
    )


def typed(name: str) -> str:
    """Return the command that a user has typed to run a subcommand: a script says its name."""
    script = os.environ.get("DEEPNET_COMMAND")
    return f"[{script}]" if script else f"deepnet {name}:"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status; 2 for what the user can mend."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
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
    intermixed = getattr(module, "INTERMIXED", False)
    args = parser.parse_intermixed_args(rest) if intermixed else parser.parse_args(rest)
    try:
        return int(module.run(args))
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
        print(f"deepnet {name}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
