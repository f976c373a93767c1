"""mkdocs hook that generates pages of the site from the code."""

from __future__ import annotations

import argparse
import html
import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    os.environ["COLUMNS"] = "72"  # argparse's line length, so that code blocks need no scrolling
    pages = {
        "reference/commands.md": commands(),
        "reference/options.md": options(),
        "reference/quantities.md": (
            ROOT / "fairseq_deepnet" / "monitoring" / "quantities.md"
        ).read_text(encoding="utf-8"),
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def commands() -> str:
    """Return the usage and options of every subcommand."""
    from fairseq_deepnet import cli

    parts = ["# Commands\n"]
    for name, (module_name, line) in cli.SUBCOMMANDS.items():
        parser = cli.Parser(prog=f"deepnet {name}", description=line)
        importlib.import_module(f"fairseq_deepnet.{module_name}").add_arguments(parser)
        usage = parser.format_usage().removeprefix("usage: ")
        rows = table(parser, parser._actions)
        parts.append(f"## deepnet {name}\n\n{line}\n\n```text\n{usage}```\n\n{rows}\n")
    return "\n".join(parts)


def options() -> str:
    """Return the options of the three models."""
    # a separate process, because importing fairseq changes the logging
    command = [sys.executable, __file__]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout


def model_options(arch: str, stock: str) -> str:
    """Return an architecture's options: first ours, then those of fairseq's model."""
    from fairseq_deepnet.tools.fairseq_options import MODEL_GROUP, _parse

    parsers = [_parse(["DATA", "--arch", name])[0] for name in (arch, stock)]
    groups = [
        next(group for group in parser._action_groups if group.title == MODEL_GROUP)
        for parser in parsers
    ]
    common = {name for action in groups[1]._group_actions for name in action.option_strings}
    actions = groups[0]._group_actions
    ours = [action for action in actions if not common & set(action.option_strings)]
    theirs = [action for action in actions if action not in ours]
    return (
        f"## --arch {arch}\n\n{table(parsers[0], ours)}\n"
        f"Options of fairseq's `{stock}`:\n\n{table(parsers[0], theirs)}\n"
    )


def table(parser: argparse.ArgumentParser, actions: Sequence[argparse.Action]) -> str:
    """Return a Markdown table of arguments and their help."""
    formatter = parser._get_formatter()
    lines = ["| argument | meaning |", "|---|---|"]
    for action in actions:
        if action.help is not argparse.SUPPRESS and action.dest != "help":
            name = formatter._format_action_invocation(action).replace("|", "\\|")
            meaning = formatter._expand_help(action) if action.help else ""
            lines.append(f"| `{name}` | {html.escape(meaning, quote=False)} |".replace("\n", " "))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print("# Model options\n")
    for pair in (
        ("deepnet_transformer", "transformer"),
        ("deepnet_transformer_lm", "transformer_lm"),
        ("deepnet_masked_lm", "roberta"),
    ):
        print(model_options(*pair))
