"""Model shapes, and the systems that train them."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PRECISIONS: Final = {"fp32": (), "bf16": ("--bf16",), "fp16": ("--fp16",)}

FAST: Final = {
    "--criterion": ("chunked_label_smoothed_cross_entropy", "label_smoothed_cross_entropy"),
    "--optimizer": ("fused_adam", "adam"),
}
"""Option -> the value for ours, and fairseq's own value for the other systems."""


@dataclass(frozen=True)
class Shape:
    """Shape of a model and its training.

    Arguments:
        layers: layers per side
        width: channels
        vocabulary: size of the shared table, including special symbols
        tokens: positions per batch, including padding (--max-tokens)
        precision: fp32, bf16 or fp16
    """

    layers: int
    width: int
    vocabulary: int
    tokens: int
    precision: str = "fp32"

    @property
    def feed_forward(self) -> int:
        """Feed-forward width: twice a width of 64, and four times any other."""
        return (2 if self.width <= 64 else 4) * self.width

    @property
    def heads(self) -> int:
        """Number of heads of 64 channels, at least two."""
        return max(2, self.width // 64)

    @property
    def name(self) -> str:
        return f"{self.layers}L-{self.layers}L, {self.width}/{self.feed_forward}/{self.heads}"

    def arguments(self) -> list[str]:
        """Return fairseq-train's options that do not depend on the system."""
        words = ["none", "--share-all-embeddings", "--dropout=0.1", "--label-smoothing=0.1"]
        for side in ("encoder", "decoder"):
            words += [f"--{side}-layers={self.layers}", f"--{side}-embed-dim={self.width}"]
            words += [f"--{side}-ffn-embed-dim={self.feed_forward}"]
            words += [f"--{side}-attention-heads={self.heads}"]
        words += ["--adam-betas=(0.9,0.98)", "--lr=1e-5", f"--max-tokens={self.tokens}"]
        return [*words, "--required-batch-size-multiple=8", *PRECISIONS[self.precision]]


@dataclass(frozen=True)
class System:
    """A training system.

    Arguments:
        name: name in the table
        kind: stock, ours or torchscale
        options: further options of fairseq-train, which override the others
        plugin: checkout of fairseq_deepnet
    """

    name: str
    kind: str
    options: tuple[str, ...] = ()
    plugin: Path = ROOT

    def arguments(self, shape: Shape) -> list[str]:
        """Return fairseq-train's command line; for ours, the plugin must be imported."""
        arch = {"stock": "transformer", "ours": "deepnet_transformer"}.get(self.kind, self.kind)
        words = [*shape.arguments(), f"--arch={arch}"]
        for option, (fast, plain) in FAST.items():
            words.append(f"{option}={fast if self.kind == 'ours' else plain}")
        return [*words, *self.options]


def variant(text: str) -> System:
    """Parse a variant of ours: `NAME=OPTIONS`, or `NAME@CHECKOUT=OPTIONS` for another checkout."""
    name, equals, options = text.partition("=")
    name, _, checkout = name.partition("@")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r}: NAME=OPTIONS or NAME@CHECKOUT=OPTIONS")
    plugin = Path(checkout).resolve() if checkout else ROOT
    if not (plugin / "fairseq_deepnet").is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: there is no {plugin / 'fairseq_deepnet'}")
    return System(name, "ours", tuple(shlex.split(options)), plugin)
