"""What an arch sets where the user, or a child arch, left it open."""

from argparse import Namespace
from collections.abc import Iterable
from typing import Any

from ..schemes import Side

BOTH = tuple(Side)


def default(args: Namespace, **values: Any) -> None:
    """Set what the user (or a child arch) left open."""
    for name, value in values.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)


def default_shape(
    args: Namespace, width: int, ffn: int, heads: int, sides: Iterable[Side] = BOTH
) -> None:
    """Width, feed-forward width and heads of these sides."""
    for side in sides:
        default(
            args,
            **{
                f"{side.value}_embed_dim": width,
                f"{side.value}_ffn_embed_dim": ffn,
                f"{side.value}_attention_heads": heads,
            },
        )


def default_depth(args: Namespace, layers: int, sides: Iterable[Side] = BOTH) -> None:
    """Layers of each of these sides."""
    default(args, **{f"{side.value}_layers": layers for side in sides})
