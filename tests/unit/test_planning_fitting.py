"""MEMORY: a recipe asks the plan what makes it fit, before anything is started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fairseq_deepnet import cli
from fairseq_deepnet.tools.configs import load_config
from fairseq_deepnet.tools.devices import Devices
from fairseq_deepnet.tools.planning.advice import device_memory, fit_into

EIGHT = Devices(gpus=8)


def fit(
    memory: float, name: str = "opus100_1000", *overrides: str, devices: Devices = EIGHT
) -> tuple[str, dict[str, object]]:
    """What is said, and the options that were added or changed."""
    config = load_config(name, overrides)
    before = dict(config.options)
    said = fit_into(config, Path("nowhere"), devices, memory, ["--bf16"])
    return said, {k: v for k, v in config.options.items() if before.get(k) != v}


def test_the_thousand_layers_get_what_makes_them_fit_into_80_gib() -> None:
    said, added = fit(80)
    assert added == {"ddp-backend": "legacy_ddp"}
    assert said.startswith(
        "memory   78.6 of 80 GiB of a GPU with --ddp-backend legacy_ddp; without"
    )


def test_the_answer_is_that_of_deepnet_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "opus100", "--gpus", "8", "--memory", "24"]) == 0
    answer = capsys.readouterr().out.split("as key=value: ")[1].splitlines()[0]
    _, added = fit(24, "opus100")
    taken = dict(word.split("=") for word in answer.split())
    taken.pop("update-freq", None)  # follows from the batch
    assert {name: str(value) for name, value in added.items()} == taken
    assert taken


def test_options_that_change_the_training_are_named_and_not_taken() -> None:
    one = Devices(gpus=1)
    with pytest.raises(ValueError, match=r"needs \d+\.\d GiB, and a GPU has 60; .*effic"):
        fit(60, devices=one)
    _, added = fit(60, "opus100_1000", "memory-efficient-bf16=true", devices=one)
    assert added.keys() <= {"ddp-backend", "max-tokens"}


def test_the_memory_of_visible_gpus_is_that_of_the_smallest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = [SimpleNamespace(total_memory=size << 30) for size in (80, 40)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", sizes.__getitem__)
    assert device_memory("auto", Devices(gpus=2), elsewhere=False) == 40
    assert device_memory("auto", Devices(gpus=2), elsewhere=True) == 80
    assert device_memory("auto", Devices(gpus=0), elsewhere=False) is None
    assert device_memory("141", EIGHT, elsewhere=False) == 141
    with pytest.raises(ValueError, match="MEMORY=much: give GiB of one GPU, or auto"):
        device_memory("much", EIGHT, elsewhere=False)
