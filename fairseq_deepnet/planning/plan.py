"""The plan of one training: parameters, memory, operations and time."""

from __future__ import annotations

import dataclasses
from typing import Final

from fairseq_deepnet import configs, fairseq_options
from fairseq_deepnet.planning import activations, compute, memory, parameters
from fairseq_deepnet.planning.setting import Model, Training, read_model, read_training
from fairseq_deepnet.training import launch

SENTENCE_LENGTH: Final = 32
"""Subwords of a sentence, unless told: it decides how much attention costs, and little else."""

OVERHEAD_GIB: Final = {"gpu": 1.5, "cpu": 0.5}
"""What a process holds besides tensors: on a GPU its context, the libraries' workspaces and NCCL's
buffers; on the CPU Python, torch and fairseq."""

FRAGMENTATION: Final = 0.05
"""Share of the tensors' peak that the allocator loses on top."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a training needs.

    Arguments:
        model, training: what is planned
        counts: parameters by part
        memory: bytes on one device
        flops: operations of one micro-batch on one device
        memory_gib: what a device has
        length: subwords of a sentence that were assumed
        teraflops, utilisation: the speed that was assumed
    """

    model: Model
    training: Training
    counts: parameters.Parameters
    memory: memory.Memory
    flops: compute.Flops
    memory_gib: float
    length: int
    teraflops: float
    utilisation: float

    @property
    def parameters(self) -> int:
        """Numbers that are learnt."""
        return self.counts.total

    @property
    def flops_per_update(self) -> float:
        """Operations of an update on all devices: forward, backward and recomputation."""
        return self.flops.total * self.training.update_freq * self.training.devices

    @property
    def seconds_per_update(self) -> float:
        """Estimated time of an update."""
        return compute.seconds_per_update(
            self.flops,
            self.model,
            self.training,
            self.counts.tensors,
            self.teraflops,
            self.utilisation,
        )

    @property
    def hours(self) -> float | None:
        """Estimated time of --max-update updates; None where that is not set."""
        updates = self.training.max_update
        return None if updates is None else updates * self.seconds_per_update / 3600

    @property
    def gpu_hours(self) -> float | None:
        """Hours x devices."""
        return None if self.hours is None else self.hours * self.training.devices

    @property
    def peak_gib(self) -> float:
        """The most that tensors hold on one device, in GiB."""
        return self.memory.peak / memory.GIB

    @property
    def needed_gib(self) -> float:
        """Memory that a device must have: the peak, what the allocator loses, the process."""
        overhead = OVERHEAD_GIB["gpu" if self.training.gpus else "cpu"]
        return self.peak_gib * (1 + FRAGMENTATION) + overhead

    @property
    def fits(self) -> bool:
        """Whether a device has that."""
        return self.needed_gib <= self.memory_gib


def estimate(
    config: configs.Config,
    gpus: int,
    memory_gib: float,
    teraflops: float,
    vocabulary: int | tuple[int, int],
    length: int = SENTENCE_LENGTH,
    utilisation: float = compute.UTILISATION,
) -> Plan:
    """Plan the training that a config describes.

    Arguments:
        gpus: devices in all; 0 is one CPU process
        memory_gib: of one device
        teraflops: peak of one device in the config's precision, 10^12 operations a second
        vocabulary: entries of the dictionary, special symbols and language tokens included; or of
            the source's and the target's
        length: subwords of a sentence
        utilisation: share of the peak that training reaches

    Where the config has recipe.global-batch-tokens, update-freq follows from the devices, as
    scripts/train.sh does it. Raises ValueError for what cannot be planned.
    """
    pair = (vocabulary, vocabulary) if isinstance(vocabulary, int) else vocabulary
    _check(gpus, memory_gib, teraflops, pair, length, utilisation)
    options = ["DATA", *configs.to_arguments(config.options)]
    args = fairseq_options.parse_training(options)
    model = read_model(args, pair)
    training = read_training(args, gpus, length)
    wanted = config.recipe.get("global-batch-tokens")
    if wanted is not None and "update-freq" not in config.options:
        batch = launch.split_batch(
            launch.parse_tokens(wanted), training.max_tokens, training.devices
        )
        training = dataclasses.replace(
            training, max_tokens=batch.max_tokens, update_freq=batch.update_freq
        )
    return make_plan(model, training, memory_gib, teraflops, length, utilisation)


def make_plan(
    model: Model,
    training: Training,
    memory_gib: float,
    teraflops: float,
    length: int = SENTENCE_LENGTH,
    utilisation: float = compute.UTILISATION,
) -> Plan:
    """Plan a training that is already read."""
    counts = parameters.count(model)
    batch = micro_batch(training, length)
    return Plan(
        model=model,
        training=training,
        counts=counts,
        memory=memory.follow(model, training, counts, batch),
        flops=compute.count(model, batch),
        memory_gib=memory_gib,
        length=length,
        teraflops=teraflops,
        utilisation=utilisation,
    )


def micro_batch(training: Training, length: int) -> activations.MicroBatch:
    """A full micro-batch of equally long sentences: --max-tokens on both sides."""
    length = min(length, training.max_tokens)
    return activations.MicroBatch(
        sentences=max(1, training.max_tokens // length),
        source=length,
        target=length,
        element=training.element,
        on_gpu=training.gpus > 0,
    )


def _check(
    gpus: int,
    memory_gib: float,
    teraflops: float,
    vocabulary: tuple[int, int],
    length: int,
    utilisation: float,
) -> None:
    if gpus < 0:
        raise ValueError(f"--gpus {gpus}: 0 plans for the CPU")
    for name, value in (("memory", memory_gib), ("teraflops", teraflops), ("length", length)):
        if not value > 0:
            raise ValueError(f"--{name} {value:g}: a positive number is expected")
    if not 0 < utilisation <= 1:
        raise ValueError(f"--utilisation {utilisation:g}: a share between 0 and 1 is expected")
    if min(vocabulary) < 5:
        raise ValueError(
            f"--vocabulary {min(vocabulary)}: fairseq's four special symbols and a word are"
            " the least"
        )
