"""The paper's numbers, their keys, and the law of depth."""

from __future__ import annotations

import math

import pytest

from fairseq_deepnet.experiments import paper


def test_all_spellings_of_a_value_have_the_same_key() -> None:
    spellings: dict[str, list[object]] = {
        "5e-4": ["5e-4", 0.0005],
        "1.5e-3": ["1.5E-03", 0.0015],
        "18": [18, "18.0"],
        "0.4": [0.4],
        "0": [0],
        "524288": [524288],
        "64 x 4096": ["64 x 4096"],
    }
    for expected, values in spellings.items():
        assert {paper.key(value) for value in values} == {expected}


def test_table_2_is_as_printed_and_its_averages_are_consistent() -> None:
    table = paper.table("table2")
    assert [table.value("1000", column) for column in table.columns] == [33.9, 30.2, 32.1]
    for row in table.rows.values():
        into, out_of, mean = (float(row[column]) for column in table.columns)
        assert mean == pytest.approx((into + out_of) / 2, abs=0.0501)  # printed to a tenth


def test_the_fit_is_the_least_squares_solution() -> None:
    # ln 1 = 0 and ln e = 1: L(1) = 2 and L(e) = 5 give A = 3, B = 2 exactly
    exact = paper.fit({1: 2.0, math.e: 5.0})
    assert exact == pytest.approx((3.0, 2.0, 2, 0.0))
    # x = 0, 1, 2, 3 and y = 1, 3, 2, 6: means 1.5 and 3, A = 7 / 5, B = 3 - 2.1
    law = paper.fit({1: 1, math.e: 3, math.e**2: 2, math.e**3: 6})
    error = (0.1**2 + 0.7**2 + 1.7**2 + 0.9**2) ** 0.5 / 2
    assert law == pytest.approx((1.4, 0.9, 4, error))
    assert law is not None
    assert law.at(math.e**2) == pytest.approx(3.7)
    assert paper.fit({6: 27.0}) is None
