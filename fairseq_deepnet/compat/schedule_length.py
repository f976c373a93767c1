"""Let `--lr-scheduler polynomial_decay` end with the training where nothing else is said.

fairseq means --total-num-update to default to --max-update, and hands on "null" instead, which its
own configuration refuses with a page of hydra's.
"""

import argparse
import functools
from typing import Any

import fairseq.options


def apply() -> None:
    """Wrap fairseq's parsing, once."""
    parse = fairseq.options.parse_args_and_arch
    if getattr(parse, "knows_schedule_length", False):
        return

    @functools.wraps(parse)
    def parse_args_and_arch(parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        parsed = parse(parser, *args, **kwargs)
        if isinstance(parsed, tuple):  # a first look, which need not see the whole command line
            return parsed
        by_length = getattr(parsed, "lr_scheduler", None) == "polynomial_decay"
        if by_length and getattr(parsed, "total_num_update", "") is None:
            if not parsed.max_update:
                parser.error(
                    "--lr-scheduler polynomial_decay needs to know when it ends; add"
                    " --total-num-update N, or --max-update N"
                )
            parsed.total_num_update = parsed.max_update
        return parsed

    parse_args_and_arch.knows_schedule_length = True  # type: ignore[attr-defined]
    fairseq.options.parse_args_and_arch = parse_args_and_arch
