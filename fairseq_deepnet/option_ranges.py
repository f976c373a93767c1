"""What fairseq's numbers may be: a value outside hangs, divides by zero or trains nothing.

fairseq takes any number that it can read. --encoder-layers 1000000000 builds for ever, --max-tokens
0 fails in its batching, --save-interval 0 divides by it, and a learning rate of 1e400 is infinite.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator
from typing import Any, Final

from .errors import ConfigurationError

_MANY: Final = 10**9  # of tokens, sentences, updates: more is a slip, and overflows 32 bits
RANGES: Final[dict[str, tuple[float, float]]] = {
    **dict.fromkeys(("encoder_layers", "decoder_layers"), (0, 10_000)),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), (1, 10_000)),
    **dict.fromkeys(("encoder_embed_dim", "decoder_embed_dim"), (1, 10**6)),
    **dict.fromkeys(("encoder_ffn_embed_dim", "decoder_ffn_embed_dim"), (1, 10**7)),
    **dict.fromkeys(
        ("max_tokens", "max_tokens_valid", "batch_size", "batch_size_valid"), (1, _MANY)
    ),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), (1, 10**7)),
    **dict.fromkeys(("tokens_per_sample", "required_batch_size_multiple"), (1, 10**7)),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout", "relu_dropout"), (0, 1)),
    **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop", "label_smoothing"), (0, 1)),
    **dict.fromkeys(("save_interval", "validate_interval", "log_interval"), (1, _MANY)),
    **dict.fromkeys(("save_interval_updates", "validate_interval_updates"), (0, _MANY)),
    **dict.fromkeys(("max_epoch", "max_update", "warmup_updates"), (0, _MANY)),
    **dict.fromkeys(("warmup_init_lr", "end_learning_rate"), (-1, 1e38)),
    **dict.fromkeys(("clip_norm", "weight_decay", "adam_eps"), (0, 1e30)),
    **dict.fromkeys(("beam", "nbest"), (1, 10_000)),
    **dict.fromkeys(("lenpen", "temperature", "sampling_temperature"), (-1e6, 1e6)),
    "lr": (0, 1e38),
    "update_freq": (1, _MANY),
    "num_workers": (0, 10_000),
    "distributed_world_size": (1, 10**6),
    "seed": (0, 2**32 - 1),
}
"""Least and greatest value by the name of an attribute."""


def refuse_absurd(args: Namespace) -> None:
    """Refuse options outside of RANGES, and numbers that are none.

    Raises:
        ConfigurationError: for the first, with its range.
    """
    for name, (least, most) in RANGES.items():
        for value in _numbers(getattr(args, name, None)):
            if not least <= value <= most:  # a NaN is within nothing
                option = name.replace("_", "-")
                raise ConfigurationError(
                    f"--{option} {value:g}: give a number from {least:g} to {most:g}"
                )


def _numbers(value: Any) -> Iterator[float]:
    """Yield the numbers of an option; none where it is left open or is something else."""
    for one in value if isinstance(value, list | tuple) else [value]:
        if isinstance(one, int | float) and not isinstance(one, bool):
            # an integer beyond a double's range is only compared
            yield one if isinstance(one, float) or abs(one) < 1 << 1000 else math.inf
