"""A fixed batch (the probe), the model's outputs for it, and its outputs at the start.

Shapes: B = sentences, T = target length, S = keys, C = channels, H = heads, n = tokens.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Collection, Iterator, Sequence
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
from ..modules import MultiheadAttention
from ..schemes import NormPlacement, Sublayer
from .gradients import LAYER, Slot, arrange

logger = logging.getLogger(__name__)

SENTENCES: Final = 32
RANK: Final = "token_rank"
ENTROPY: Final = "attention_entropy"
ORIGIN: Final = "monitor_probe.pt"
NetInput = dict[str, Tensor]


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients, with a separate random generator, from which LayerDrop's
    list draws even in evaluation.
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


def first_sentences(trainer: Any, samples: Sequence[Any]) -> NetInput:
    """Return the model's input for the first validation sentences.

    Runs with other batches so share a probe. Without such a set, or if its batches are split by
    direction, the first training batch is the probe.
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
    """A model's outputs for a fixed batch.

    Args:
        net_input: the model's arguments, on its device: src_tokens [B, S] and, with both stacks,
            prev_output_tokens [B, T].
        padding: index of the padding symbol.
    """

    def __init__(self, net_input: NetInput, padding: int) -> None:
        self.net_input = net_input
        tokens = net_input.get("prev_output_tokens", net_input["src_tokens"])
        self.mask = tokens.ne(padding)
        self.source_mask = net_input["src_tokens"].ne(padding)

    def features(self, model: nn.Module) -> Tensor:
        """Return F(x, theta): the top layer's output [n, C] of the tokens, float32."""
        with evaluating(model):
            output = model(**self.net_input, features_only=True)[0]
        return output[self.mask].float()

    def features_and_layers(
        self,
        model: nn.Module,
        stacks: Sequence[Stack],
        placement: NormPlacement,
        wanted: Collection[str],
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return `features`, and from the same pass the requested values of every layer.

        These are the rank of its tokens, and the entropy of each attention's weights in nats,
        averaged over heads and queries.
        """
        found: dict[Slot, Tensor] = {}
        hooks = []
        for stack in stacks:
            side = stack.side.value
            mask = self.source_mask if side == "encoder" else self.mask
            for index, layer in enumerate(stack.layers):
                if RANK in wanted:
                    watch = _rank_hook(found, (RANK, side, LAYER, index), mask)
                    first = layer.branches[0].first(placement)
                    hooks.append(first.register_forward_pre_hook(watch))
                for branch in layer.branches if ENTROPY in wanted else ():
                    if branch.sublayer is not Sublayer.FFN:
                        slot = (ENTROPY, side, branch.sublayer.value, index)
                        hook = _entropy_hook(found, slot, mask)
                        hooks.append(branch.entry.register_forward_hook(hook, with_kwargs=True))
        try:
            features = self.features(model)
        finally:
            for handle in hooks:
                handle.remove()
        numbers = torch.stack(list(found.values())).tolist() if found else []
        return features, arrange(dict(zip(found, numbers, strict=True)))


def _rank_hook(found: dict[Slot, Tensor], slot: Slot, mask: Tensor) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
        # [n, C] of unit length; K = U^T U / n has trace 1, and tr(K)^2 / tr(K^2) is its rank
        unit = nn.functional.normalize(args[0][mask].float(), dim=-1)
        found[slot] = torch.linalg.matrix_norm(unit.T @ unit / len(unit)) ** -2

    return hook


def _entropy_hook(found: dict[Slot, Tensor], slot: Slot, queries: Tensor) -> Any:
    def hook(
        module: MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
    ) -> None:
        x, key, _, mask, causal = (*args, None, False)[:5]
        if causal:
            mask = torch.ones(x.size(1), key.size(2), dtype=torch.bool, device=x.device).tril()
        # [B, H, T, S] -> [B, H, T]; 0 ln 0 is 0
        entropy = torch.special.entr(module.weights(x, key, mask)).sum(dim=-1)
        found[slot] = entropy[queries[:, None].expand_as(entropy)].mean()

    return hook


def distance(features: Tensor, reference: Tensor) -> Tensor:
    """Return the mean over tokens of |F - F'|, both [n, C], as a scalar tensor."""
    return torch.linalg.vector_norm(features - reference, dim=-1).mean()


class Origin:
    """Origin of accumulated updates: F(x, theta_0) on the probe, and theta_0 for the bound.

    A resumed run continues from the origin of its first start. Probe and features are in a file.
    theta_0 is not, as it is as large as the model: a resumed run builds its model with the same
    seed before it loads the checkpoint. The sum of all parameters as built shows whether the file
    belongs to the run.

    Args:
        model: the model as built.
        padding: index of the padding symbol.
        weights: parameters whose initial values are needed; none without a bound.
        file: file of probe and features.
    """

    def __init__(
        self, model: nn.Module, padding: int, weights: Sequence[Tensor], file: Path
    ) -> None:
        self.model, self.padding, self.file = model, padding, file
        self.probe: Probe | None = None
        self.features: Tensor | None = None  # [n, C]
        self.weights: list[Tensor] | None = None  # in host memory
        self._live = weights
        self._built = _in_host_memory(weights)
        # nothing is measured on the probe of a model that is split: no process has its parameters
        whole = (p.detach() for p in model.parameters() if not isinstance(p, DTensor))
        sums = (p.abs().sum(dtype=torch.float64) for p in whole)
        self._mark = math.fsum(map(float, sums))

    def prepare(self, trainer: Any, samples: Sequence[Any]) -> None:
        """Choose the probe unless it exists."""
        if self.probe is None:
            net_input = first_sentences(trainer, samples)
            if trainer.cuda:
                net_input = utils.move_to_cuda(net_input)
            self.probe = Probe(net_input, self.padding)

    def take(self) -> None:
        """Make the current parameters theta_0 unless it exists, and write the file."""
        if self.features is not None or self.probe is None:
            return
        self.weights = self._built = _in_host_memory(self._live)
        self.features = self.probe.features(self.model)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "net_input": {name: value.cpu() for name, value in self.probe.net_input.items()},
            "features": self.features.cpu(),
            "fingerprint": self._mark,
        }
        save_checkpoint(state, self.file)

    def resume(self) -> None:
        """Continue from the file of the first start; warn if there is none."""
        device = next(self.model.parameters()).device
        try:
            state = torch.load(self.file, map_location=device, weights_only=True)
            mark, features = float(state["fingerprint"]), state["features"]
            probe = Probe(dict(state["net_input"]), self.padding)
            same = math.isclose(mark, self._mark, rel_tol=1e-6)
            problem = "" if same else "is of a run with other initial weights (another --seed?)"
        except Exception as error:  # torch.load raises whatever a damaged file leads it to
            problem = f"cannot be read ({error})"
        if problem:
            logger.warning("%s %s: model updates count from here on", self.file, problem)
        else:
            self.probe, self.features, self.weights = probe, features, self._built


def _in_host_memory(weights: Sequence[Tensor]) -> list[Tensor]:
    """Return copies in host memory, as theta_0 is seldom needed."""
    return [weight.detach().to("cpu", copy=True) for weight in weights]
