"""Devices, their share of the batch, precision."""

from __future__ import annotations

import pytest

from fairseq_deepnet.tools.devices import Devices, choose_devices
from fairseq_deepnet.tools.training import launch


@pytest.mark.parametrize(
    ("text", "tokens"), [(4096, 4096), ("128 x 4096", 524288), ("2*3x4", 24), ("8 × 5", 40)]
)
def test_a_batch_is_a_number_or_a_product(text: object, tokens: int) -> None:
    assert launch.parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["many", "4096 tokens", "-5", 0, "", "3 x 0"])
def test_anything_else_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="global-batch-tokens"):
        launch.parse_tokens(text)


@pytest.mark.parametrize(
    ("gpus", "nodes", "update_freq"),
    [(1, 1, 128), (8, 1, 16), (1, 8, 16), (8, 4, 4), (4, 8, 4), (8, 16, 1), (128, 1, 1)],
)
def test_update_freq_keeps_the_papers_batch_for_any_number_of_gpus_and_nodes(
    gpus: int, nodes: int, update_freq: int
) -> None:
    devices = choose_devices(str(gpus), 1, nodes, visible=gpus)
    batch = launch.split_batch(128 * 4096, 4096, devices.total)
    assert (batch.max_tokens, batch.update_freq) == (4096, update_freq)
    assert batch.is_exact
    assert batch.tokens == 524_288


def test_more_gpus_than_the_batch_has_steps_keep_it_by_smaller_shares() -> None:
    batch = launch.split_batch(128 * 4096, 4096, 256)
    assert (batch.max_tokens, batch.update_freq, batch.tokens) == (2048, 1, 524_288)
    assert "sentence" not in str(batch)
    assert "a sentence longer than a device's share" in str(launch.split_batch(4000, 4000, 32))


@pytest.mark.parametrize(
    ("devices", "update_freq", "off"),
    [(7, 18, "-1.6"), (3, 43, "+0.8"), (96, 1, "-25.0")],  # 128 / 7 = 18.29, 42.67, 1.33
)
def test_a_batch_that_does_not_divide_is_rounded_to_the_nearest_and_says_so(
    devices: int, update_freq: int, off: str
) -> None:
    batch = launch.split_batch(128 * 4096, 4096, devices)
    assert batch.update_freq == update_freq
    assert not batch.is_exact
    assert f"rounded: the recipe wants 524,288, {off} %" in str(batch)


def test_devices_that_hold_more_than_the_batch_take_equal_shares() -> None:
    batch = launch.split_batch(2048, 2048, 2)
    assert (batch.max_tokens, batch.update_freq, batch.tokens) == (1024, 1, 2048)


def test_all_visible_gpus_are_used_unless_told_otherwise() -> None:
    assert choose_devices("all", 1, 1, visible=8) == Devices(gpus=8)
    assert choose_devices("2", 1, 1, visible=8) == Devices(gpus=2)
    assert choose_devices("0", 2, 1, visible=8) == Devices(gpus=0, cpu_processes=2)
    assert choose_devices("all", 2, 1, visible=0).total == 2


@pytest.mark.parametrize(
    ("wanted", "processes", "nodes", "message"),
    [
        ("8", 1, 1, r"GPUS=8, but 0 visible; set GPUS=0 to train on the CPU"),
        ("two", 1, 1, "GPUS=two: a number"),
        ("-1", 1, 1, "GPUS=-1: a number"),
        ("0", 0, 1, "CPU_PROCESSES=0"),
        ("0", 1, 0, "NODES=0: at least 1"),
    ],
)
def test_devices_that_are_not_there_are_refused(
    wanted: str, processes: int, nodes: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        choose_devices(wanted, processes, nodes, visible=0)


@pytest.mark.parametrize("bf16_works", [True, False])
def test_precision_on_gpus_is_bf16_where_that_works(
    monkeypatch: pytest.MonkeyPatch, bf16_works: bool
) -> None:
    monkeypatch.setattr(launch, "_bf16_works", lambda: bf16_works)
    expected = ["--bf16"] if bf16_works else ["--fp16"]
    assert launch.precision_arguments("auto", has_gpus=True) == expected
    assert launch.precision_arguments("fp32", has_gpus=True) == []
    assert launch.precision_arguments("auto", has_gpus=False) == []
    assert launch.precision_arguments("bf16", has_gpus=False) == ["--bf16"]


def test_fp16_without_a_gpu_and_unknown_precisions_are_refused() -> None:
    with pytest.raises(ValueError, match="PRECISION=fp16 needs a GPU"):
        launch.precision_arguments("fp16", has_gpus=False)
    with pytest.raises(ValueError, match="choose from auto, bf16, fp16, fp32"):
        launch.precision_arguments("fp8", has_gpus=True)
