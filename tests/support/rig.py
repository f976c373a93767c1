"""fairseq's trainer with a tiny model and batches in memory."""

import copy
import functools
import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import options
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import FairseqTask
from torch import nn

import fairseq_deepnet.models  # noqa: F401  (registers the architectures)
from fairseq_deepnet.tools.standalone import VocabularyTask
from fairseq_deepnet.trainer import DeepNetTrainer

SYMBOLS = 20
PAD, EOS = 1, 2
Pair = tuple[list[int], list[int]]
Sample = dict[str, Any]

# Lengths differ on both sides, so every batch has padding.
TRAIN: list[Pair] = [
    ([4, 9, 11, 5, EOS], [7, 8, EOS]),
    ([6, 13, EOS], [10, 4, 5, 6, EOS]),
    ([12, 7, 8, EOS], [9, EOS]),
]
MORE: list[Pair] = [([5, 5, 14, EOS], [11, 12, EOS]), ([15, EOS], [4, 13, 8, EOS])]
PROBE: list[Pair] = [([8, 6, 4, 7, EOS], [5, EOS]), ([10, 11, EOS], [6, 12, 14, EOS])]


class Task(FairseqTask):
    """Minimal task for a trainer, with the probe's sentences as its validation set."""

    def __init__(self, two_sides: bool) -> None:
        super().__init__(None)
        self.two_sides = two_sides
        self.words = VocabularyTask(SYMBOLS).source_dictionary
        self.datasets = {"valid": self.dataset_of(PROBE)}

    @property
    def source_dictionary(self) -> Dictionary:
        return self.words

    @property
    def target_dictionary(self) -> Dictionary:
        return self.words

    def dataset_of(self, pairs: Sequence[Pair]) -> LanguagePairDataset:
        """Return fairseq's data set of sentence pairs; language models use only the first side."""
        sides = [[torch.tensor(pair[side]) for pair in pairs] for side in (0, 1)]
        lengths = [torch.tensor([len(words) for words in side]).numpy() for side in sides]
        second = (sides[1], lengths[1], self.words) if self.two_sides else (None, None, None)
        return LanguagePairDataset(sides[0], lengths[0], self.words, *second, shuffle=False)

    def sample(self, pairs: Sequence[Pair]) -> Sample:
        """Return a batch as from fairseq's iterators; a language model's target is its input."""
        data = self.dataset_of(pairs)
        batch = dict(data.collater([data[row] for row in range(len(pairs))]))
        if not self.two_sides:
            batch["target"] = batch["net_input"]["src_tokens"]
        return batch


SIZES = (
    "--encoder-layers=2 --decoder-layers=2 --encoder-embed-dim=8 --decoder-embed-dim=8"
    " --encoder-ffn-embed-dim=12 --decoder-ffn-embed-dim=12"
    " --encoder-attention-heads=2 --decoder-attention-heads=2"
)
ARCHS = {"deepnet_transformer": 2, "deepnet_transformer_lm": 1, "deepnet_masked_lm": 1}
"""Number of sides of our models."""


def parse(arch: str, *arguments: str) -> Namespace:
    """Parse arguments as fairseq-train does."""
    both = ARCHS[arch] == 2
    sizes = [
        option
        for option in SIZES.split()
        if both or ("encoder" in option) == (arch == "deepnet_masked_lm")
    ]
    base = ["none", "--arch", arch, "--cpu", "--max-tokens=100", "--criterion=cross_entropy"]
    base += ["--optimizer=sgd", "--lr=0.5", "--dropout=0"]
    if arch != "deepnet_masked_lm":
        base += ["--no-token-positional-embeddings"]
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, [*base, *sizes, *arguments])
    args.max_positions = 30  # an option of the masked_lm task
    return args


def configuration(arch: str, args: Namespace, arguments: Sequence[str]) -> Any:
    """Return fairseq's configuration.

    Conversion takes longer than twenty updates, so runs that differ only in their model share it.
    """
    ours = ("--monitor", "--on-", "--residual", "--scheme", "--encoder", "--decoder", "--dropout")
    result = copy.deepcopy(_converted(arch, *(a for a in arguments if not a.startswith(ours))))
    vars(result.model).clear()
    vars(result.model).update(vars(args))
    return result


@functools.cache
def _converted(arch: str, *arguments: str) -> Any:
    return convert_namespace_to_omegaconf(parse(arch, *arguments))


class Rig:
    """Run whose updates are performed one by one.

    Args:
        folder: --save-dir.
        arguments: arguments of fairseq-train, after sizes, SGD with a learning rate of 0.5 and no
            dropout.
        arch: one of our models.
        seed: seed of the initial weights.
    """

    def __init__(
        self, folder: Path, *arguments: str, arch: str = "deepnet_transformer", seed: int = 1
    ) -> None:
        metrics.reset()
        args = parse(arch, *arguments)
        self.task = Task(ARCHS[arch] == 2)
        self.cfg = configuration(arch, args, arguments)
        self.cfg.checkpoint.save_dir = str(folder)
        torch.manual_seed(seed)
        self.model: Any = ARCH_MODEL_REGISTRY[arch].build_model(args, self.task)
        criterion = self.task.build_criterion(self.cfg.criterion)
        self.trainer = DeepNetTrainer(self.cfg, self.task, self.model, criterion)
        self.file = folder / "monitor.jsonl"

    def update(self, *batches: Sequence[Pair]) -> Any:
        """Perform one update with these micro-batches."""
        samples = [self.task.sample(batch) for batch in batches or (TRAIN,)]
        return self.trainer.train_step(samples)

    def records(self) -> list[dict[str, Any]]:
        """Return the records in monitor.jsonl, without using the project's reader."""
        if not self.file.exists():
            return []
        return [json.loads(line) for line in self.file.read_text(encoding="utf-8").splitlines()]

    def values(self) -> dict[str, Any]:
        """Return the last record's quantities."""
        return dict(self.records()[-1]["values"])


def count_hooks(model: nn.Module) -> int:
    """Return the hooks on all modules and parameters of a model."""
    kinds = [
        "_forward_hooks",
        "_forward_pre_hooks",
        "_backward_hooks",
        "_backward_pre_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_pre_hooks_with_kwargs",
    ]
    on_modules = sum(len(getattr(m, kind)) for m in model.modules() for kind in kinds)
    return on_modules + sum(
        len(p._backward_hooks or ()) + len(p._post_accumulate_grad_hooks or ())
        for p in model.parameters()
    )
