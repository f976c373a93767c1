"""Pages of the site that are generated from the code: an mkdocs hook."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    os.environ["COLUMNS"] = "100"  # of argparse
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
    """Return the help of every subcommand."""
    from fairseq_deepnet import cli

    parts = ["# Commands\n"]
    for name, (module_name, line) in cli.SUBCOMMANDS.items():
        parser = cli.Parser(prog=f"deepnet {name}", description=line)
        importlib.import_module(f"fairseq_deepnet.{module_name}").add_arguments(parser)
        parts.append(f"## deepnet {name}\n\n```text\n{parser.format_help()}```\n")
    return "\n".join(parts)


def options() -> str:
    """Return the options of the three models."""
    parts = ["# Model options\n"]
    for arch in ("deepnet_transformer", "deepnet_transformer_lm", "deepnet_masked_lm"):
        # a process of its own: fairseq changes the logging of the one that imports it
        command = [sys.executable, "-m", "fairseq_deepnet.cli", "options", arch]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8")
        parts.append(f"## --arch {arch}\n\n```text\n{done.stdout}```\n")
    return "\n".join(parts)
