"""What is compared: shapes of models, and the systems that train them."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
KINDS: Final = ("stock", "ours", "torchscale")
PRECISIONS: Final = {"fp32": (), "bf16": ("--bf16",), "fp16": ("--fp16",)}

FAST: Final = {
    "--criterion": ("chunked_label_smoothed_cross_entropy", "label_smoothed_cross_entropy"),
    "--optimizer": ("fused_adam", "adam"),
}
"""What ours trains with, and fairseq's own, which the others train with."""


@dataclass(frozen=True)
class Shape:
    """A training.

    Arguments:
        layers: a side
        width: channels
        vocabulary: entries of the shared table, special symbols included
        tokens: of a batch, padding included (--max-tokens)
        precision: fp32, bf16 or fp16
        ffn: feed-forward width; by default twice a width of 64 and four times any other
    """

    layers: int
    width: int
    vocabulary: int
    tokens: int
    precision: str = "fp32"
    ffn: int = 0

    @property
    def feed_forward(self) -> int:
        return self.ffn or (2 if self.width <= 64 else 4) * self.width

    @property
    def heads(self) -> int:
        """Of 64 channels, two at least."""
        return max(2, self.width // 64)

    @property
    def name(self) -> str:
        return f"{self.layers}L-{self.layers}L, {self.width}/{self.feed_forward}/{self.heads}"

    def arguments(self) -> list[str]:
        """fairseq-train's options, system aside."""
        words = ["none", "--share-all-embeddings", "--dropout=0.1", "--label-smoothing=0.1"]
        for side in ("encoder", "decoder"):
            words += [f"--{side}-layers={self.layers}", f"--{side}-embed-dim={self.width}"]
            words += [f"--{side}-ffn-embed-dim={self.feed_forward}"]
            words += [f"--{side}-attention-heads={self.heads}"]
        words += ["--adam-betas=(0.9,0.98)", "--lr=1e-5", f"--max-tokens={self.tokens}"]
        return [*words, "--required-batch-size-multiple=8", *PRECISIONS[self.precision]]


@dataclass(frozen=True)
class System:
    """Something that trains.

    Arguments:
        name: in the table
        kind: one of KINDS
        options: of fairseq-train, after and so before all others
        plugin: the checkout whose fairseq_deepnet ours is
    """

    name: str
    kind: str
    options: tuple[str, ...] = ()
    plugin: Path = ROOT

    def arguments(self, shape: Shape) -> list[str]:
        """fairseq-train's command line; to be called where the plugin is imported, if ours."""
        arch = {"stock": "transformer", "ours": "deepnet_transformer"}.get(self.kind, self.kind)
        words = [*shape.arguments(), f"--arch={arch}"]
        for option, (fast, plain) in FAST.items():
            words.append(f"{option}={fast if self.kind == 'ours' and has(fast) else plain}")
        return [*words, *self.options]


def has(name: str) -> bool:
    """Whether a criterion or an optimiser of this name is registered with fairseq."""
    from fairseq.criterions import CRITERION_REGISTRY
    from fairseq.optim import OPTIMIZER_REGISTRY

    return name in CRITERION_REGISTRY or name in OPTIMIZER_REGISTRY


def variant(text: str) -> System:
    """Ours with options: `NAME=OPTIONS`, or `NAME@CHECKOUT=OPTIONS` for another checkout."""
    name, equals, options = text.partition("=")
    name, _, checkout = name.partition("@")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r}: NAME=OPTIONS or NAME@CHECKOUT=OPTIONS")
    plugin = Path(checkout).resolve() if checkout else ROOT
    if not (plugin / "fairseq_deepnet").is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: there is no {plugin / 'fairseq_deepnet'}")
    return System(name, "ours", tuple(shlex.split(options)), plugin)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that choose systems."""
    parser.add_argument(
        "--systems", default="stock,ours,torchscale", help="the first is the base (%(default)s)"
    )
    parser.add_argument(
        "--variant",
        type=variant,
        action="append",
        default=[],
        metavar="NAME[@CHECKOUT]=OPTIONS",
        help="ours once more, with further options of fairseq-train, or of another checkout",
    )


def chosen(options: argparse.Namespace) -> list[System]:
    """The systems asked for, in order."""
    names = [name for name in options.systems.split(",") if name]
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise SystemExit(f"--systems {unknown[0]}: choose from {', '.join(KINDS)}")
    found = [System(name, name) for name in names] + options.variant
    if len({system.name for system in found}) != len(found) or not found:
        raise SystemExit("--systems and --variant: give each system a name of its own")
    return found
