"""The probe: a fixed batch, the model's outputs for it, and those of the initial model.

Shapes: B = sentences, S, T = source and target length, C = channels, n = tokens.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from fairseq import utils
from fairseq.data import data_utils
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..anatomy import Stack
from ..checkpoints import save_checkpoint
from ..schemes import NormPlacement, Side
from .gradients import LAYER, Slot, arrange

logger = logging.getLogger(__name__)

SENTENCES: Final = 32
RANK: Final = "token_rank"
FILE: Final = "monitor_probe.pt"


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluate without gradients, with a separate random generator.

    LayerDrop's list draws from the generator even in evaluation.
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    device = next(model.parameters()).device
    with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            for module in training:
                module.training = True


def first_sentences(trainer: Any, samples: Sequence[Any]) -> dict[str, Tensor]:
    """Return the first validation sentences as input of the model.

    This makes runs with different batches share a probe. Without a validation set, or if its
    batches are split by direction, the first training batch is the probe.
    """
    data, task = trainer.cfg.dataset, trainer.task
    dataset = task.datasets.get(data.valid_subset.split(",")[0])
    with contextlib.suppress(KeyError, TypeError, NotImplementedError), data_utils.numpy_seed(1):
        if dataset is not None:
            limits = task.max_positions(), trainer.get_model().max_positions()
            longest = utils.resolve_max_positions(*limits)
            indices = dataset.filter_indices_by_size(np.arange(len(dataset)), longest)[0]
            first = indices[:SENTENCES]
            batch = dataset.batch_by_size(first, data.max_tokens_valid, SENTENCES)[0]
            return dict(dataset.collater([dataset[int(row)] for row in batch])["net_input"])
    return {name: value[:SENTENCES] for name, value in samples[0]["net_input"].items()}


class Probe:
    """A model's outputs for a fixed batch, and the origin of accumulated updates.

    A resumed run continues from the origin of its first start. A file contains the batch and F(x,
    theta_0), but not theta_0, which is as large as the model: a resumed run builds its model with
    the same seed before it loads the checkpoint. The sum of all initial parameters shows whether
    the file belongs to the run.

    Args:
        model: the model as built.
        padding: index of the padding symbol.
        weights: parameters whose initial values are needed; none without a bound.
        file: file of the batch and the features.
    """

    def __init__(
        self, model: nn.Module, padding: int, weights: Sequence[Tensor], file: Path
    ) -> None:
        self.model, self.padding, self.file = model, padding, file
        # the model's arguments: src_tokens [B, S] and, with two stacks, prev_output_tokens [B, T]
        self.net_input: dict[str, Tensor] = {}
        self.initial: Tensor | None = None  # F(x, theta_0) [n, C]
        self.weights: list[Tensor] = []  # theta_0, in host memory
        self._live = weights
        self._built = _in_host_memory(weights)
        # a sharded model, whose parameters no process has, is not measured on the probe
        whole = (p.detach() for p in model.parameters() if not isinstance(p, DTensor))
        self._sum = math.fsum(float(p.abs().sum(dtype=torch.float64)) for p in whole)

    def prepare(self, trainer: Any, samples: Sequence[Any]) -> None:
        """Choose the batch unless it exists."""
        if not self.net_input:
            batch = first_sentences(trainer, samples)
            self.net_input = utils.move_to_cuda(batch) if trainer.cuda else batch

    def start(self) -> None:
        """Store the current parameters as theta_0, unless it exists, and write the file."""
        if self.initial is not None:
            return
        self.weights = self._built = _in_host_memory(self._live)
        self.initial = self.features()
        self.file.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "net_input": {name: value.cpu() for name, value in self.net_input.items()},
            "features": self.initial.cpu(),
            "fingerprint": self._sum,
        }
        save_checkpoint(state, self.file)

    def resume(self) -> None:
        """Continue from the file of the first start; warn if there is none."""
        device = next(self.model.parameters()).device
        try:
            state = torch.load(self.file, map_location=device, weights_only=True)
            if not math.isclose(state["fingerprint"], self._sum, rel_tol=1e-6):
                raise ValueError("it is of other initial weights (another --seed?)")
            self.net_input, self.initial = dict(state["net_input"]), state["features"]
            self.weights = self._built
        except Exception as error:  # a damaged file makes torch.load raise anything
            logger.warning("%s: %s; model updates count from here on", self.file, error)

    def mask(self, side: Side) -> Tensor:
        """Return the tokens of a stack's input [B, T]: False at padding."""
        source = self.net_input["src_tokens"]
        is_decoder = side is Side.DECODER
        tokens = self.net_input.get("prev_output_tokens", source) if is_decoder else source
        return tokens.ne(self.padding)

    def features(self) -> Tensor:
        """Return F(x, theta): the top layer's output [n, C] of the tokens, float32."""
        with evaluating(self.model):
            output = self.model(**self.net_input, features_only=True)[0]
        return output[self.mask(Side.DECODER)].float()

    def measure_ranks(
        self, stacks: Sequence[Stack], placement: NormPlacement
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return `features` and, from the same pass, the rank of the tokens in every layer."""
        ranks: dict[Slot, Tensor] = {}

        def watch(module: nn.Module, slot: Slot, mask: Tensor) -> Any:
            def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
                # [n, C] of unit length; K = U^T U / n has trace 1; its rank is tr(K)^2 / tr(K^2)
                unit = nn.functional.normalize(args[0][mask].float(), dim=-1)
                ranks[slot] = torch.linalg.matrix_norm(unit.T @ unit / len(unit)) ** -2

            return module.register_forward_pre_hook(hook)

        hooks = [
            watch(
                layer.branches[0].first(placement),
                (RANK, stack.side.value, LAYER, index),
                self.mask(stack.side),
            )
            for stack in stacks
            for index, layer in enumerate(stack.layers)
        ]
        try:
            features = self.features()
        finally:
            for handle in hooks:
                handle.remove()
        numbers = torch.stack([*ranks.values()]).tolist()
        return features, arrange(dict(zip(ranks, numbers, strict=True)))


def distance(features: Tensor, reference: Tensor) -> float:
    """Return the mean over tokens of |F - F'|, both [n, C]."""
    return torch.linalg.vector_norm(features - reference, dim=-1).mean().item()


def _in_host_memory(weights: Sequence[Tensor]) -> list[Tensor]:
    """Return copies in host memory, as theta_0 is rarely needed."""
    return [weight.detach().to("cpu", copy=True) for weight in weights]
