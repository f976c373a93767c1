"""The plan of one training: parameters, memory, operations and time."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from fairseq_deepnet.files import shown
from fairseq_deepnet.footprint import (
    Memory,
    Model,
    Parameters,
    Training,
    count,
    fit,
    follow,
    micro_batch,
    needed_gib,
)
from fairseq_deepnet.footprint.memory import GIB, SENTENCE_LENGTH
from fairseq_deepnet.models.account import read_model, read_training
from fairseq_deepnet.models.checkpoint_memory import memory_of
from fairseq_deepnet.models.deepnet_transformer import DeepNetTransformerModel
from fairseq_deepnet.tools import configs, fairseq_options
from fairseq_deepnet.tools.corpora.folder import DataFolder
from fairseq_deepnet.tools.planning import compute
from fairseq_deepnet.tools.training import launch


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a training needs.

    Args:
        counts: parameters by part
        memory, flops: bytes, and operations of one micro-batch, on one device
        memory_gib: what a device has
        length, teraflops, utilisation: subwords of a sentence, and the speed, as assumed
        checkpoint_gib: what --checkpoint-memory allows; None where it says nothing
    """

    model: Model
    training: Training
    counts: Parameters
    memory: Memory
    flops: compute.Flops
    memory_gib: float
    length: int
    teraflops: float
    utilisation: float
    checkpoint_gib: float | None = None

    @property
    def parameters(self) -> int:
        """Numbers that are learnt."""
        return self.counts.total

    @property
    def flops_per_update(self) -> float:
        """Operations of an update on all devices."""
        return self.flops.total * self.training.update_freq * self.training.devices

    @property
    def seconds_per_update(self) -> float:
        """Estimated time of an update."""
        what = (self.flops, self.model, self.training, self.counts.tensors)
        return compute.seconds_per_update(*what, self.teraflops, self.utilisation)

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
        return self.memory.peak / GIB

    @property
    def needed_gib(self) -> float:
        """Memory that a device must have: the peak, what the allocator loses, the process."""
        return needed_gib(self.memory.peak, self.training.gpus > 0)

    @property
    def fits(self) -> bool:
        """Whether a device has that."""
        return self.needed_gib <= self.memory_gib


def require_plannable(arch: str) -> None:
    """Raise ValueError for a model that is no encoder-decoder of ours or of fairseq's."""
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.models.transformer import TransformerModel

    if ARCH_MODEL_REGISTRY.get(arch) not in (DeepNetTransformerModel, TransformerModel):
        raise ValueError(
            f"--arch {arch}: only encoder-decoders can be planned: deepnet_transformer,"
            " fairseq's transformer and their named shapes"
        )


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

    Args:
        gpus: devices in all; 0 is one CPU process
        memory_gib: of one device
        teraflops: peak of one device in the config's precision, 10^12 operations per second
        vocabulary: entries of the dictionary, special symbols and language tokens included; or of
            the source's and the target's
        length: subwords of a sentence
        utilisation: share of the peak that training reaches

    Where the config has recipe.global-batch-tokens, update-freq follows from the devices, as
    scripts/train.sh does it. Raises ValueError for what cannot be planned.
    """
    pair = (vocabulary, vocabulary) if isinstance(vocabulary, int) else vocabulary
    if gpus < 0:
        raise ValueError(f"--gpus {gpus}: 0 plans for the CPU")
    for name, value in {"memory": memory_gib, "teraflops": teraflops, "length": length}.items():
        if not value > 0:
            raise ValueError(f"--{name} {value:g}: a positive number is expected")
    if not 0 < utilisation <= 1:
        raise ValueError(f"--utilisation {utilisation:g}: a share between 0 and 1 is expected")
    if min(pair) < 5:
        raise ValueError(
            f"--vocabulary {min(pair)}: fairseq's four special symbols and a word are the least"
        )
    args = fairseq_options.parse_training(["DATA", *configs.to_arguments(config.options)])
    require_plannable(args.arch)
    model = read_model(args, pair)
    training = read_training(args, gpus, length)
    if training.precision == "fp16" and not gpus:
        raise ValueError("--fp16 needs a GPU; the CPU trains in fp32 or bf16")
    wanted = config.recipe.get("global-batch-tokens")
    if wanted is not None and "update-freq" not in config.options:
        tokens = launch.parse_tokens(wanted)
        batch = launch.split_batch(tokens, training.max_tokens, training.devices)
        training = dataclasses.replace(
            training, max_tokens=batch.max_tokens, update_freq=batch.update_freq
        )
    checkpoint_gib = memory_of(args, (lambda: memory_gib) if gpus else None)
    return make_plan(model, training, memory_gib, teraflops, length, utilisation, checkpoint_gib)


def make_plan(
    model: Model,
    training: Training,
    memory_gib: float,
    teraflops: float,
    length: int = SENTENCE_LENGTH,
    utilisation: float = compute.UTILISATION,
    checkpoint_gib: float | None = None,
) -> Plan:
    """Plan a training that is already read."""
    counts = count(model)
    batch = micro_batch(training, length)
    if checkpoint_gib is not None:  # as the training will choose, which knows no length
        model, _ = fit(model, training, micro_batch(training), checkpoint_gib)
    return Plan(
        model=model,
        training=training,
        counts=counts,
        memory=follow(model, training, counts, batch),
        flops=compute.count(model, batch),
        memory_gib=memory_gib,
        length=length,
        teraflops=teraflops,
        utilisation=utilisation,
        checkpoint_gib=checkpoint_gib,
    )


def vocabulary_of(config: configs.Config, data: Path | None) -> tuple[tuple[int, int], str]:
    """Return the entries of both dictionaries, and where the numbers come from.

    Where there is no data folder yet, the config says what it will have; else ValueError.
    """
    if data is not None and (data / "corpus.json").is_file():
        return vocabulary_in(data), f"of {shown(data)}"
    if "vocabulary" in config.recipe:
        entries = parse_vocabulary(str(config.recipe["vocabulary"]))
        return entries, "of the config, without data yet"
    raise ValueError("how many entries has the dictionary? give --vocabulary N or --data FOLDER")


def vocabulary_in(data: Path) -> tuple[int, int]:
    """Count the entries of the source's and the target's dictionary in a data folder.

    A folder of many languages has one dictionary, to which fairseq adds a token a language.
    """
    folder = DataFolder.open(data)
    if folder.is_multilingual or folder.is_monolingual:
        tokens = len(folder.languages) if folder.is_multilingual else 0
        entries = entries_of(data / "dict.txt") + tokens
        return entries, entries
    source, target = (entries_of(data / f"dict.{name}.txt") for name in folder.languages)
    return source, target


def entries_of(dictionary: Path) -> int:
    """Count the entries of a dictionary file, and the four special symbols that fairseq adds."""
    with dictionary.open("rb") as file:
        return sum(1 for line in file if line.strip()) + 4


def parse_vocabulary(text: str) -> tuple[int, int]:
    """Return the sizes of both dictionaries from "32000" or "8000,6000" (source, target)."""
    parts = text.replace("_", "").split(",")
    if len(parts) > 2 or not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"--vocabulary {text}: a number of entries is expected, or SOURCE,TARGET")
    sizes = [int(part) for part in parts]
    return sizes[0], sizes[-1]
