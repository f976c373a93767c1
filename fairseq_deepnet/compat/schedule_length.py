"""Let `--lr-scheduler polynomial_decay` end with the training where nothing else is said.

fairseq means --total-num-update to default to --max-update, and hands on "null" instead, which its
own configuration refuses with a page of hydra's.
"""

import argparse
from typing import Any

import fairseq.options

from ..wrapping import wrap


def apply() -> None:
    """Wrap fairseq's parsing."""

    @wrap(fairseq.options, "parse_args_and_arch")
    def parse_args_and_arch(
        parse: Any, parser: argparse.ArgumentParser, *args: Any, **kwargs: Any
    ) -> Any:
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
