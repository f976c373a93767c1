"""Scales, names and thinning of figures."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from fairseq_deepnet.divergence.events import Event, Finding, Kind
from fairseq_deepnet.monitoring.quantities import QUANTITIES
from fairseq_deepnet.tools.plotting.images import edges_of
from fairseq_deepnet.tools.plotting.runs import Grid, GridKey, Run
from fairseq_deepnet.tools.plotting.series import (
    Line,
    columns,
    label_of,
    layer_ticks,
    part_title,
    parts_of,
    profiles,
    scale_of,
    thin,
    title,
)


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


@pytest.mark.parametrize("values", [[], [math.nan], [2.0], [0.0]], ids=str)
def test_a_scale_has_a_width_whatever_there_is(values: list[float]) -> None:
    scale = scale_of([np.array(values)])
    assert scale.low < scale.high


def test_zeros_do_not_keep_a_scale_from_being_logarithmic() -> None:
    scale = scale_of([np.array([0.0, 1e-6, 1.0])])
    assert scale.is_log
    assert scale.low > 0


def test_a_thinned_line_keeps_its_ends_its_spikes_and_where_it_broke() -> None:
    values = [1.0] * 5000
    values[1234], values[2345], values[4000] = 99.0, -99.0, math.nan
    line = thin(Line(0, "a", "solid", range(5000), values), most=200)
    assert len(line.x) <= 2 * 200
    assert {0, 1234, 2345, 4000, 4999} <= set(line.x)
    assert line.y[list(line.x).index(1234)] == 99.0
    assert list(line.x) == sorted(line.x)
    assert thin(line, most=1000) == line


def test_a_thinned_heat_map_keeps_the_updates_around_an_event() -> None:
    grid = grid_of([[1.0]] * 1000)
    event = Event(Finding(Kind.LOSS_SPIKE, 5003, ""), 5005, "", {}, "warn", 0)
    kept = columns(grid, 50, [event])
    assert len(kept) <= 55
    assert {0, 499, 500, 501, 999} <= set(kept.tolist())
    assert len(columns(grid, 2000)) == 1000


KEY = GridKey("branch_norm", "decoder", "ffn")


@pytest.mark.parametrize(
    ("values", "updates"), [([math.nan, 1, 1, 1, math.nan], (20, 40)), ([math.nan], ())]
)
def test_profiles_are_of_updates_that_have_numbers(
    values: list[float], updates: tuple[int, ...], tmp_path: Path
) -> None:
    run = Run("a", tmp_path, grids={KEY: grid_of([[value] for value in values])})
    labels = [line.label for line in profiles([run], KEY)]
    assert labels[:1] + labels[1:][-1:] == [f"a, update {update}" for update in updates]


def test_parts_run_from_input_to_output_after_the_one_for_the_whole_layer(tmp_path: Path) -> None:
    parts = ["encoder_attn.vo", "self_attn.vo", "self_attn.qk", "new", "ffn"]
    grids = {GridKey("branch_norm", "decoder", part): grid_of([[1.0]]) for part in parts}
    found = parts_of([Run("a", tmp_path, grids=grids)], "branch_norm")
    assert found == ["ffn", "self_attn.qk", "self_attn.vo", "encoder_attn.vo", "new"]


def test_names_are_words_and_axes_have_units() -> None:
    assert title("layer_norm_input") == "LayerNorm input"
    assert label_of("attention_entropy") == "Attention entropy (nats)"
    assert label_of("parameter_update_ratio") == "Parameter update ratio"
    assert part_title("self_attn.qk") == "self-attention, query and key"
    assert all(title(name)[0].isupper() for name in QUANTITIES)


def test_columns_of_a_heat_map_meet_half_way() -> None:
    assert edges_of(np.array([10, 20, 40])).tolist() == [5, 15, 30, 50]
    assert edges_of(np.array([10])).tolist() == [9.5, 10.5]


@pytest.mark.parametrize("layers", [1, 2, 6, 18, 100, 1000])
def test_layer_ticks_are_few_and_hold_the_first_and_the_last(layers: int) -> None:
    ticks = layer_ticks(layers)
    assert {ticks[0], ticks[-1]} == {1, layers}
    assert len(ticks) <= 12
