"""`deepnet options`: what fairseq-train --help leaves out, the options of an architecture.

fairseq-train prints its help before it knows the architecture.
"""

from __future__ import annotations

import argparse
import sys

from fairseq_deepnet.tools import fairseq_options

_GROUP = "Model-specific configuration"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `deepnet options`."""
    parser.add_argument(
        "arch", nargs="?", default="deepnet_transformer", help="as after --arch (%(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the options of the architecture."""
    parser = fairseq_options.training_parser(["DATA", "--arch", args.arch])
    group = next(group for group in parser._action_groups if group.title == _GROUP)
    shown = argparse.ArgumentParser(prog=f"fairseq-train --arch {args.arch}", add_help=False)
    formatter = shown._get_formatter()
    formatter.start_section(f"options of {args.arch}, besides fairseq-train's own")
    formatter.add_arguments(group._group_actions)
    formatter.end_section()
    sys.stdout.write(formatter.format_help())
    return 0
