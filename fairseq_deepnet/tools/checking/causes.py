"""What a difference likely comes from: defaults left in place, and each scheme's known mistakes.

Every cause is a number that is compared with the measured one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from torch import nn

from fairseq_deepnet.schemes import DeepNorm, NormPlacement, ResidualScheme, Role, Side, Sublayer
from fairseq_deepnet.tools.checking.behaviour import Join
from fairseq_deepnet.tools.checking.claim import Claim, linear_default_std, xavier_std
from fairseq_deepnet.tools.checking.deepnorm_mistakes import DeepNormMistakes
from fairseq_deepnet.tools.checking.findings import Row
from fairseq_deepnet.tools.checking.mistakes import Mistakes

NEAR: Final = 0.003
"""How near two numbers must be, relative, to be called one, on top of sampling error."""

STANDARD_ERRORS: Final = 3

NOT_SCALED: Final = "not scaled"

MISTAKES: Final[dict[type[ResidualScheme], Callable[[Any], Mistakes]]] = {
    ResidualScheme: Mistakes,
    DeepNorm: DeepNormMistakes,
}
"""By scheme; a scheme derived from one of these shares its mistakes."""


def mistakes_of(scheme: ResidualScheme) -> Mistakes:
    """What is known to go wrong with a scheme."""
    known = next(MISTAKES[base] for base in type(scheme).__mro__ if base in MISTAKES)
    return known(scheme)


@dataclasses.dataclass(frozen=True)
class Weight:
    """A kind of weight that is off; `layers` are those which are off by themselves."""

    row: Row
    side: Side
    sublayer: Sublayer
    role: Role
    linear: nn.Linear
    layers: tuple[int, ...]
    count: int

    @property
    def is_uniform(self) -> bool:
        """Whether all layers are to have one gain, and are all off."""
        return len(set(self.row.gain)) == 1 and len(self.layers) in (0, len(self.row.gain))

    @property
    def measured_gain(self) -> float:
        """Pooled over the layers that are off, or over all."""
        values = [self.row.measured_gain[i] for i in self.layers] or list(self.row.measured_gain)
        return math.sqrt(sum(value**2 for value in values) / len(values))

    @property
    def found(self) -> str:
        if not math.isfinite(self.measured_gain):
            return "a standard deviation that is not finite"
        if self.measured_gain == 0:
            return "all zeros"
        if max(self.row.gain) == 0:
            return f"std up to {max(self.row.measured):.3g}"
        if len(set(self.row.gain)) > 1 and self.row.ratio is not None:
            return f"{self.row.ratio:.3g} times the standard deviations that are due"
        return f"gain {self.measured_gain:.3g}"

    @property
    def expected(self) -> str:
        if max(self.row.gain) == 0:
            return "zeros"
        texts = list(dict.fromkeys(f"{gain:.3g}" for gain in self.row.gain))
        return texts[0] if len(texts) == 1 else f"gain {texts[0]} (bottom) to {texts[-1]} (top)"


def near(a: float, b: float, count: int | None = None) -> bool:
    """Whether a is b, give or take the sampling error of `count` draws."""
    slack = NEAR + (STANDARD_ERRORS / math.sqrt(2 * count) if count else 0)
    return b != 0 and abs(a / b - 1) <= slack


def explain_weight(weight: Weight, claim: Claim) -> str:
    """The likely cause of a weight's standard deviation; "" where it is no known one."""
    scheme = claim.schemes[weight.side]
    default = linear_default_std(weight.linear) / xavier_std(weight.linear)
    bases = [(1.0, ""), (default, "nn.Linear's default initialisation")]
    if weight.sublayer is not Sublayer.FFN and weight.role is not Role.OUT_PROJ:
        bases.append((2**-0.5, "fairseq's stock initialisation"))
    found = weight.measured_gain
    for base, name in bases:
        matches = [
            (abs(found / (base * gain) - 1), text)
            for gain, text in gain_mistakes(weight, scheme, bool(name))
            if near(found, base * gain, weight.count)
        ]
        if not matches:
            continue
        text = min(matches)[1]
        if not name:
            return text
        return (
            f"{name} left in place"
            if text == NOT_SCALED
            else f"{name} instead of Xavier's, and {text}"
        )
    return ""


def gain_mistakes(
    weight: Weight, scheme: ResidualScheme, other_base: bool
) -> Iterator[tuple[float, str]]:
    """Gains that are known for being wrong here, and what each means."""
    expected = weight.row.gain[0] if weight.is_uniform else None
    yield 1.0, NOT_SCALED
    if expected and other_base:
        yield expected, "scaled as it should be"
    yield from mistakes_of(scheme).gains(weight.side, weight.role)


def explain_bias(members: Sequence[tuple[str, float, nn.Linear]], claim: Claim, side: Side) -> str:
    """The likely cause of biases that do not start as expected."""
    found = [float(linear.bias.detach().square().mean().sqrt()) for _, _, linear in members]
    defaults = [linear_default_std(linear) for _, _, linear in members]
    count = sum(linear.bias.numel() for _, _, linear in members)
    ratio = math.sqrt(sum((f / d) ** 2 for f, d in zip(found, defaults, strict=True)) / len(found))
    if near(ratio, 1.0, count):
        return "nn.Linear's default left in place"
    scaled = [f / d for f, d in zip(found, defaults, strict=True)]
    if min(scaled) < 0.9 and max(scaled) < 1.1:
        return mistakes_of(claim.schemes[side]).smaller_biases
    return ""


def explain_end(
    found: float, expected: float, count: int, claim: Claim, is_projection: bool
) -> str:
    """The likely cause of embeddings or a vocabulary projection that are off."""
    what = "the vocabulary projection is" if is_projection else "embeddings are"
    if not expected:
        return ""
    for side, scheme in claim.schemes.items():
        for factor, text in mistakes_of(scheme).ends(side):
            if near(found / expected, factor, count):
                return f"{text}: {what} not scaled"
    if near(found, 1.0, count):
        return "nn.Embedding's default N(0, 1) left in place"
    return ""


def explain_join(found: Join, expected: Join, scheme: ResidualScheme, side: Side) -> str:
    """The likely cause of a sublayer that joins the residual stream in another way."""
    right, alpha = expected.alpha, found.alpha
    post = expected.norm is NormPlacement.POST
    if post and found.norm is NormPlacement.PRE:
        if near(alpha, 1.0):
            return "LayerNorm stands before the branch, not after the sum"
        return (
            f"alpha under Pre-LN: the stream grows by {alpha:.3g} in every sublayer, and no"
            " LayerNorm stops it"
        )
    if expected.norm is NormPlacement.PRE and found.norm is NormPlacement.POST:
        return "LayerNorm stands after the sum, not before the branch"
    if found.norm is not expected.norm:
        return ""
    if not near(right, 1.0) and near(alpha, 1.0) and near(found.branch[0], right):
        return "alpha multiplies the branch, not the residual"
    if not near(right, alpha):
        for value, text in alpha_mistakes(right, scheme, side):
            if near(alpha, value):
                return text
    return ""


def alpha_mistakes(right: float, scheme: ResidualScheme, side: Side) -> Iterator[tuple[float, str]]:
    """Residual weights that are known for being wrong here, and what each means."""
    yield 1.0, "the residual is not scaled"
    if right:
        yield 1 / right, "alpha is inverted"
    yield from mistakes_of(scheme).alphas(side)
