"""Scales, names and thinning of figures."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fairseq_deepnet.divergence.events import Event, Finding, Kind
from fairseq_deepnet.tools.plotting.runs import Grid
from fairseq_deepnet.tools.plotting.series import columns, scale_of


def grid_of(values: list[list[float]], step: int = 10) -> Grid:
    array = np.array(values, dtype=np.float64)
    updates = step * np.arange(1, len(values) + 1)
    return Grid(updates, array, np.ones_like(array, dtype=bool))


def test_colours_are_logarithmic_where_values_span_a_decade() -> None:
    assert scale_of([np.array([0.1, 5.0])]).is_log
    assert not scale_of([np.array([1.0, 9.0])]).is_log
    assert not scale_of([np.array([-1.0, 100.0])]).is_log


def test_panels_share_one_scale_that_a_single_explosion_does_not_stretch() -> None:
    calm = np.linspace(1, 100, 1000)
    scale = scale_of([calm, np.array([1e30, math.inf, math.nan])])
    assert scale.high == pytest.approx(99, abs=1)
    assert scale.low == pytest.approx(2, abs=1)


def test_a_thinned_heat_map_keeps_the_updates_around_an_event() -> None:
    grid = grid_of([[1.0]] * 1000)
    event = Event(Finding(Kind.LOSS_SPIKE, 5003, ""), 5005, "", {}, "warn", 0)
    kept = columns(grid, 50, [event])
    assert len(kept) <= 55
    assert {0, 499, 500, 501, 999} <= set(kept.tolist())
    assert len(columns(grid, 2000)) == 1000
