"""A fixed batch, and what the model makes of it: its output, and the entropy of its attention.

Shapes: B = sentences, T = target length, S = keys, C = channels, H = heads, n = tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from fairseq import utils
from fairseq.data import data_utils
from torch import Tensor, nn

from ..anatomy import Stack
from ..modules import MultiheadAttention
from ..schemes import Sublayer
from .gradients import Slot, arrange

logger = logging.getLogger(__name__)

SENTENCES: Final = 32
NetInput = dict[str, Tensor]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients, and a generator of random numbers of its own: LayerDrop's
    list draws from it even then.
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
    """The model's input for the first sentences of the validation set, so that runs with other
    batches share a probe; of the first training batch where there is no such set.
    """
    subset = trainer.cfg.dataset.valid_subset.split(",")[0]
    dataset = trainer.task.datasets.get(subset)
    if dataset is not None:
        try:
            with data_utils.numpy_seed(1):
                rows = [dataset[index] for index in _fitting(trainer, dataset)]
                return dict(dataset.collater(rows)["net_input"])
        except (KeyError, TypeError, NotImplementedError) as error:
            logger.warning("no probe from %s (%r): the first training batch is it", subset, error)
    return {name: value[:SENTENCES] for name, value in samples[0]["net_input"].items()}


def _fitting(trainer: Any, dataset: Any) -> list[int]:
    """Return the first sentences that the model can read, and that fit into one batch."""
    longest = utils.resolve_max_positions(
        trainer.task.max_positions(), trainer.get_model().max_positions()
    )
    every = np.arange(len(dataset))
    most = trainer.cfg.dataset.max_tokens_valid
    chosen: list[int] = []
    tokens = 0
    for index in map(int, dataset.filter_indices_by_size(every, longest)[0][:SENTENCES]):
        tokens = max(tokens, int(dataset.num_tokens(index)))
        if chosen and most and (len(chosen) + 1) * tokens > most:
            break
        chosen.append(index)
    return chosen


class Probe:
    """What a model makes of a fixed batch.

    Args:
        net_input: the model's arguments, on its device: src_tokens [B, S] and, where it has both
            stacks, prev_output_tokens [B, T].
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

    def features_and_entropy(
        self, model: nn.Module, stacks: Sequence[Stack]
    ) -> tuple[Tensor, dict[str, Any]]:
        """`features`, and of the same pass the entropy of every attention's weights in nats, mean
        over heads and queries.
        """
        found: dict[Slot, Tensor] = {}
        hooks = []
        for stack in stacks:
            queries = self.source_mask if stack.side.value == "encoder" else self.mask
            for index, layer in enumerate(stack.layers):
                for branch in layer.branches:
                    if branch.sublayer is not Sublayer.FFN:
                        part = branch.sublayer.value
                        slot = ("attention_entropy", stack.side.value, part, index)
                        hook = _entropy_hook(found, slot, queries)
                        hooks.append(branch.entry.register_forward_hook(hook, with_kwargs=True))
        try:
            features = self.features(model)
        finally:
            for handle in hooks:
                handle.remove()
        numbers = torch.stack(list(found.values())).tolist() if found else []
        return features, arrange(dict(zip(found, numbers, strict=True)))


def _entropy_hook(found: dict[Slot, Tensor], slot: Slot, queries: Tensor) -> Any:
    def hook(
        module: MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
    ) -> None:
        x, key, _, mask, causal = (*args, None, False)[:5]
        if causal:
            mask = torch.ones(x.size(1), key.size(2), dtype=torch.bool, device=x.device).tril()
        entropy = attention_entropy(module.weights(x, key, mask))
        rows = queries[:, None].expand_as(entropy)
        found[slot] = entropy[rows].mean()

    return hook


def attention_entropy(weights: Tensor) -> Tensor:
    """Return -sum p ln p over keys: [B, H, T, S] -> [B, H, T], nats; 0 ln 0 is 0."""
    return torch.special.entr(weights).sum(dim=-1)


def distance(features: Tensor, reference: Tensor) -> Tensor:
    """Return the mean over tokens of |F - F'|, both [n, C]; a tensor of one number."""
    return torch.linalg.vector_norm(features - reference, dim=-1).mean()
