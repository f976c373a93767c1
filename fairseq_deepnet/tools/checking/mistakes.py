"""What is known to go wrong in implementations of a scheme: a number each, and what it means.

Only what is a known mistake has its formula here; what is right comes from the schemes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

from fairseq_deepnet.schemes import ResidualScheme, Role, Side


def name_and_summary(scheme: ResidualScheme) -> str:
    """What a scheme says of itself, as the source of a fault."""
    return f"{scheme.name}: {scheme.summary}"


@dataclasses.dataclass(frozen=True)
class Mistakes:
    """Those of a scheme of which none are known; a scheme with its own overrides what differs."""

    scheme: ResidualScheme

    smaller_biases: ClassVar[str] = ""
    """The cause of biases that start below nn.Linear's default; "" where it is not known."""

    @property
    def layer_source(self) -> str:
        """Where it is written how a layer is built and how its weights start."""
        return name_and_summary(self.scheme)

    @property
    def depth_source(self) -> str:
        """Where it is written how a sublayer joins the stream at a given depth."""
        return name_and_summary(self.scheme)

    def gains(self, side: Side, role: Role) -> Iterator[tuple[float, str]]:
        """Gains of a linear map that are wrong."""
        yield from ()

    def alphas(self, side: Side) -> Iterator[tuple[float, str]]:
        """Weights of the residual that are wrong."""
        yield from ()

    def ends(self, side: Side) -> Iterator[tuple[float, str]]:
        """Factors by which embeddings or a vocabulary projection are off."""
        yield from ()
