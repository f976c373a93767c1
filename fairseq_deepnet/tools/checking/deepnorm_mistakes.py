"""The mistakes that DeepNorm's implementations are known for, and where the paper says better."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

from fairseq_deepnet.schemes import DeepNorm, Gains, Role, Side, gains
from fairseq_deepnet.schemes.base import VALUE_PATH
from fairseq_deepnet.tools.checking.mistakes import Mistakes


@dataclasses.dataclass(frozen=True)
class DeepNormMistakes(Mistakes):
    """Wrong alphas and betas (N encoder, M decoder layers)."""

    scheme: DeepNorm

    smaller_biases: ClassVar[str] = (
        "nn.Linear's default, scaled together with the weights: only weights have a gain"
    )

    @property
    def layer_source(self) -> str:
        return (
            "paper, Fig. 2(a): LN(alpha x + G(x)); weights Xavier-normal, gain beta for fc1, fc2,"
            f" v_proj and out_proj, 1 for q_proj and k_proj{self._left_out}"
        )

    @property
    def depth_source(self) -> str:
        return (
            "paper, Fig. 2(b): alpha and beta follow from the depths of both stacks, on each side"
            f" by a formula of its own{self._left_out}"
        )

    @property
    def _left_out(self) -> str:
        left_out = {"alpha-only": "beta", "beta-only": "alpha"}.get(str(self.scheme.variant))
        return f"; with --scheme-variant {self.scheme.variant} {left_out} is 1" * bool(left_out)

    def gains(self, side: Side, role: Role) -> Iterator[tuple[float, str]]:
        """beta where none is due, and other numbers instead of beta."""
        depths = self.scheme.depths
        beta = self.scheme.gains[side].beta
        if self.scheme.variant == "alpha-only":
            due = gains(depths.encoder, depths.decoder)[side].beta
            yield due, f"scaled by the paper's beta = {due:.3g}, which alpha-only leaves out"
            return
        if role not in VALUE_PATH:
            yield beta, f"scaled by beta = {beta:.3g} like the value path"
            return
        if side is Side.ENCODER and depths.decoder:
            inverted = 1.15 * (depths.encoder**4 * depths.decoder) ** (-1 / 16)
            yield (
                inverted,
                f"scaled by {inverted:.3g} = 1.15 (N^4 M)^(-1/16), torchscale's constant: 0.87"
                f" inverted, {inverted / beta:.2f} times too large",
            )
        yield 1 / beta, "multiplied by 1 / beta: beta is inverted"
        yield beta**2, "scaled by beta twice"
        for other, pair in self.scheme.gains.items():
            if other is not side:
                yield pair.beta, f"scaled by the {other.value}'s beta = {pair.beta:.3g}"
        alone = self._alone(side)
        yield (
            alone.beta,
            f"scaled by {alone.beta:.3g} = (8 N)^(-1/4), the formula of a model of one stack",
        )

    def alphas(self, side: Side) -> Iterator[tuple[float, str]]:
        """Other formulas' alphas, and the other side's."""
        if self.scheme.variant == "beta-only":
            depths = self.scheme.depths
            yield (
                gains(depths.encoder, depths.decoder)[side].alpha,
                "this is the paper's alpha, which beta-only leaves out",
            )
            return
        for other, pair in self.scheme.gains.items():
            if other is not side:
                yield pair.alpha, f"this is the {other.value}'s alpha"
        depth = self.scheme.depths.of(side)
        yield (2 * depth) ** 0.5, "(2 N)^(1/2), GLM-130B's variant"
        yield self._alone(side).alpha, "(2 N)^(1/4), the formula of a model of one stack"
        one_depth = gains(*(depth for _ in Side))[side]
        yield one_depth.alpha, "the formula with one depth for both sides"

    def ends(self, side: Side) -> Iterator[tuple[float, str]]:
        """beta, which is for the layers only."""
        if self.scheme.variant == "alpha-only":
            return
        beta = self.scheme.gains[side].beta
        yield beta, f"scaled by the {side.value}'s beta = {beta:.3g}"

    def _alone(self, side: Side) -> Gains:
        """Those of a model that has only this side."""
        depth = self.scheme.depths.of(side)
        return gains(*(depth if other is side else 0 for other in Side))[side]
