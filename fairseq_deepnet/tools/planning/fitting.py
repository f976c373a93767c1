"""The options that make a training fit into its devices, taken from the plan before it starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.devices import DEVICE_GIB, Devices, gpu_gib
from fairseq_deepnet.tools.planning import vocabulary
from fairseq_deepnet.tools.planning.advice import Advice, advise
from fairseq_deepnet.tools.planning.estimates import estimate
from fairseq_deepnet.tools.planning.report import as_arguments

AUTO: Final = "auto"


def device_memory(wanted: str, devices: Devices, elsewhere: bool) -> float | None:
    """Return GiB of one device to plan with; None on a CPU, unless they are said.

    Args:
        wanted: GiB, or "auto": what the GPUs here have; of those `elsewhere` a usual size.
    """
    if wanted != AUTO:
        try:
            return float(wanted)
        except ValueError:
            raise ValueError(f"MEMORY={wanted}: give GiB of one GPU, or {AUTO}") from None
    if not devices.gpus:
        return None
    return DEVICE_GIB if elsewhere else gpu_gib(devices.gpus)


def fit_into(
    config: configs.Config,
    data: Path,
    devices: Devices,
    memory_gib: float,
    precision: Sequence[str],
) -> str:
    """Add to a config what makes it fit, if anything has to be; return a line that says so.

    Args:
        data: the data folder, for its dictionaries; need not be there yet.
        memory_gib: of one device.
        precision: the options of it that will be added.

    Raises:
        ValueError: where nothing makes it fit, or only what changes the update: that is the user's
            to choose.
    """
    planned = config.options | {word.removeprefix("--"): True for word in precision}
    gpus = devices.total if devices.gpus else 0
    sizes, _ = vocabulary.of_recipe(config, data)
    wanted = dataclasses.replace(config, options=planned)
    advice = advise(estimate(wanted, gpus, memory_gib, teraflops=1, vocabulary=sizes))
    device = "a GPU" if gpus else "the CPU"
    room = f"of {memory_gib:.4g} GiB of {device}"
    if advice.wanted.fits:
        return f"memory   {advice.wanted.needed_gib:.1f} {room} (deepnet plan)"
    if not (advice.fits and advice.is_exact(advice.steps[-1])):
        least = min(step.plan.needed_gib for step in advice.steps if advice.is_exact(step))
        raise ValueError(
            f"the training needs {least:.1f} GiB, and {device} has {memory_gib:.4g}"
            f"{_what_else(advice)}; MEMORY= starts it all the same"
        )
    options = dict(advice.options)
    if "global-batch-tokens" in config.recipe and "update-freq" not in config.options:
        options.pop("update-freq", None)  # follows from the batch and the devices
    found = (configs.parse_override(f"{name}={value}") for name, value in options.items())
    configs.override(config, dict(found), "deepnet plan")
    return (
        f"memory   {advice.plan.needed_gib:.1f} {room} with {as_arguments(options)}; without"
        f" {advice.wanted.needed_gib:.1f} (deepnet plan)"
    )


def _what_else(advice: Advice) -> str:
    """Return what would fit, where no option that leaves the update as it is does."""
    if not advice.fits:
        return (
            f", and no option makes it fit ({advice.least_gib:.1f} GiB are the least): take"
            " GPUs with more memory or a smaller model"
        )
    return (
        f"; {as_arguments(advice.options)} fits, and changes the training"
        f" ({advice.steps[-1].effect}): add that, or take GPUs with more memory"
    )
