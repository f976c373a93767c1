"""DeepNorm's gains against the paper, and requirements for every scheme."""

import math

import pytest

from fairseq_deepnet.schemes import SCHEMES, Side, gains
from tests.support.shell import ROOT

# Computed by hand from Fig. 2(b) of arXiv 2203.00555 for N = M: (layers, encoder alpha, beta,
# decoder alpha, beta).
PUBLISHED = [
    (6, 1.418, 0.497, 2.060, 0.343),
    (10, 1.663, 0.424, 2.340, 0.302),
    (18, 1.999, 0.353, 2.711, 0.261),
    (50, 2.750, 0.256, 3.500, 0.202),
    (100, 3.416, 0.206, 4.162, 0.170),
    (500, 5.648, 0.125, 6.223, 0.114),
]


@pytest.mark.parametrize(("layers", "ea", "eb", "da", "db"), PUBLISHED)
def test_deepnorm_gains_are_the_papers(
    layers: int, ea: float, eb: float, da: float, db: float
) -> None:
    actual = gains(layers, layers)
    assert actual[Side.ENCODER] == pytest.approx((ea, eb), abs=6e-4)
    assert actual[Side.DECODER] == pytest.approx((da, db), abs=6e-4)


def test_deepnorm_gains_of_unequal_depths_follow_both_depths() -> None:
    actual = gains(12, 3)
    assert actual[Side.ENCODER].alpha == pytest.approx(0.81 * math.exp(math.log(12**4 * 3) / 16))
    assert actual[Side.ENCODER].beta == pytest.approx(0.87 / math.exp(math.log(12**4 * 3) / 16))
    assert actual[Side.DECODER] == pytest.approx((math.sqrt(3.0), 1 / math.sqrt(6.0)))


@pytest.mark.parametrize(
    ("page", "pattern"), [("reference/schemes", "| `{}`"), ("reports/export", "`{}`")]
)
def test_every_scheme_is_documented(page: str, pattern: str) -> None:
    """The pages list each scheme's formula and its export."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    missing = [name for name in SCHEMES if not any(pattern.format(name) in row for row in rows)]
    assert not missing
