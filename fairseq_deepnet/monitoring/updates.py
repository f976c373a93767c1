"""Model updates: the probe that measures them, and the paper's bounds (Theorems 4.2 and 4.3).

The probe is a fixed batch. A model update is the change in the model's output for this batch.

In the theorems, a sublayer has two scalar weights v and w, and an input of variance 1. Here, v and
w are the factors by which the sublayer's two matrices W scale a random input, relative to Xavier's
initialisation: rms(W) sqrt((fan_in + fan_out) / 2), which is initially beta. |theta*_i - theta_i|
is the Frobenius norm of the change in both matrices, an upper limit for any direction of the input.
The bound is multiplied by sqrt(C), the norm of a token after LayerNorm, so that it has the unit of
|F(x, theta*) - F(x, theta)|. Like the theorems, the result holds up to a constant factor.

Shapes: B = sentences, S, T = source and target length, C = channels, n = tokens.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from fairseq import utils
from fairseq.data import data_utils
from torch import Tensor, nn

from ..anatomy import Stack
from ..checkpoints import save_checkpoint
from ..schemes import NormPlacement, Side, Sublayer
from ..schemes.base import VALUE_PATH
from .instruments import LAYER, Slot, arrange

logger = logging.getLogger(__name__)

SENTENCES: Final = 32
TOKENS: Final = ("token_similarity", "token_rank")
FILE: Final = "monitor_probe.pt"


def first_sentences(trainer: Any, samples: Sequence[Any]) -> dict[str, Tensor]:
    """Return the first validation sentences as model input.

    Runs with different training batches thus share a probe. If there is no validation set, or if
    it is split by direction, return sentences of the first training batch.
    """
    data, task = trainer.cfg.dataset, trainer.task
    dataset = task.datasets.get(data.valid_subset.split(",")[0])
    with contextlib.suppress(KeyError, TypeError, NotImplementedError), data_utils.numpy_seed(1):
        if dataset is not None:
            limits = task.max_positions(), trainer.get_model().max_positions()
            longest = utils.resolve_max_positions(*limits)
            first = dataset.filter_indices_by_size(np.arange(len(dataset)), longest)[0][:SENTENCES]
            batch = dataset.batch_by_size(first, data.max_tokens_valid, SENTENCES)[0]
            return dict(dataset.collater([dataset[int(row)] for row in batch])["net_input"])
    return {name: value[:SENTENCES] for name, value in samples[0]["net_input"].items()}


class Probe:
    """Fixed batch with the initial model's output, from which model updates are measured.

    A resumed run reads the batch and the output from a file. The file omits the initial parameters,
    theta_0, because they are as large as the model. The run rebuilds them from the seed before it
    loads a checkpoint. The sum of their absolute values shows whether the file belongs to the run.

    Args:
        model: the model with its initial parameters
        padding: index of the padding symbol
        file: file that stores the batch and the initial output
    """

    def __init__(self, model: nn.Module, padding: int, file: Path) -> None:
        self.model, self.padding, self.file = model, padding, file
        # the model's arguments: src_tokens [B, S] and, with two stacks, prev_output_tokens [B, T]
        self.net_input: dict[str, Tensor] = {}
        self.initial: Tensor | None = None  # F(x, theta_0) [n, C]
        self.moved = 0.0  # bound for the change from the seed's weights to theta_0
        sums = (p.detach().abs().sum(dtype=torch.float64) for p in model.parameters())
        self._sum = math.fsum(map(float, sums))

    def prepare(self, trainer: Any, samples: Sequence[Any]) -> None:
        """Choose the batch unless it has already been chosen."""
        if not self.net_input:
            batch = first_sentences(trainer, samples)
            self.net_input = utils.move_to_cuda(batch) if trainer.cuda else batch

    def start(self, moved: float) -> None:
        """Compute the output with the current parameters as theta_0, and write the file."""
        self.initial, self.moved = self.features(), moved
        self.file.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "net_input": {name: value.cpu() for name, value in self.net_input.items()},
            "features": self.initial.cpu(),
            "fingerprint": self._sum,
            "moved": moved,
        }
        save_checkpoint(state, self.file)

    def resume(self) -> None:
        """Read the batch and the initial output; warn if the file is missing or damaged."""
        device = next(self.model.parameters()).device
        try:
            state = torch.load(self.file, map_location=device, weights_only=True)
            if not math.isclose(state["fingerprint"], self._sum, rel_tol=1e-6):
                raise ValueError("the run had other initial weights (another --seed?)")
            self.net_input, self.initial = dict(state["net_input"]), state["features"]
            self.moved = state.get("moved", 0.0)
        except Exception as error:  # torch.load raises any exception for a damaged file
            logger.warning("%s: %s; model updates are measured from here on", self.file, error)

    def mask(self, side: Side) -> Tensor:
        """Return the mask [B, T] of a stack's input, which is False at padding."""
        source = self.net_input["src_tokens"]
        is_decoder = side is Side.DECODER
        tokens = self.net_input.get("prev_output_tokens", source) if is_decoder else source
        return tokens.ne(self.padding)

    def features(self) -> Tensor:
        """Return F(x, theta), the top layer's output [n, C] for all tokens, in float32."""
        device = next(self.model.parameters()).device
        self.model.eval()
        # LayerDrop's list draws random numbers even in evaluation
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            output = self.model(**self.net_input, features_only=True)[0]
        self.model.train()
        return output[self.mask(Side.DECODER)].float()

    def measure_tokens(
        self, stacks: Sequence[Stack], placement: NormPlacement
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return what `features` returns and, from the same pass, the quantities in TOKENS."""
        measured: dict[Slot, Tensor] = {}

        def measure(side: Side, layer: int, module: nn.Module, args: tuple[Any, ...]) -> None:
            unit = nn.functional.normalize(args[0][self.mask(side)].float(), dim=-1)  # [n, C]
            mean = unit.mean(dim=0)
            covariance = (unit - mean).T @ (unit - mean) / len(unit)
            square = covariance.square().sum().clamp_min(torch.finfo(unit.dtype).tiny)
            values = mean.square().sum(), covariance.trace().square() / square
            for name, value in zip(TOKENS, values, strict=True):
                measured[name, side.value, LAYER, layer] = value

        hooks = [
            layer.branches[0]
            .first(placement)
            .register_forward_pre_hook(functools.partial(measure, stack.side, index))
            for stack in stacks
            for index, layer in enumerate(stack.layers)
        ]
        try:
            features = self.features()
        finally:
            for handle in hooks:
                handle.remove()
        numbers = torch.stack([*measured.values()]).tolist()
        return features, arrange(dict(zip(measured, numbers, strict=True)))


def distance(features: Tensor, reference: Tensor) -> float:
    """Return the mean over tokens of |features - reference|, both [n, C]."""
    return torch.linalg.vector_norm(features - reference, dim=-1).mean().item()


def residual_weight(layer: nn.Module, sublayer: Sublayer) -> float:
    """Return alpha in LN(alpha x + G(x)), or the mean of a learned vector (Admin's omega)."""
    residual: Any = layer.get_submodule(f"residuals.{sublayer.value}")
    alpha = getattr(residual, "alpha", None)
    if alpha is not None:
        return float(alpha)
    return float(torch.stack([w.float().mean() for w in residual.learned().values()]).mean())


class UpdateBound:
    """Bound on the model update in models whose LayerNorms follow the residual sums.

    A stack contributes the sum over its sublayers of sqrt(v^2 + w^2) / alpha |theta* - theta|
    (Theorem 4.2). The encoder's contribution is multiplied by the sum over cross-attentions of
    v w / alpha (Theorem 4.3).
    """

    def __init__(self, stacks: Sequence[Stack]) -> None:
        self.places = [
            (stack.side, layer.module, branch)
            for stack in stacks
            for layer in stack.layers
            for branch in layer.branches
        ]
        self.weights = [  # v and w of each branch, in this order
            linear.weight
            for *_, branch in self.places
            for role, linear in branch.linears.items()
            if role in VALUE_PATH
        ]
        self.start()

    def start(self) -> None:
        """Copy the current weights to host memory as theta_0."""
        self.initial = [weight.detach().to("cpu", copy=True) for weight in self.weights]

    @torch.no_grad()
    def measure(self) -> float:
        """Return the bound for the change from the initial to the current weights."""
        norms = []
        for weight, initial in zip(self.weights, self.initial, strict=True):
            before = initial.to(weight.device).float()
            change = torch.linalg.vector_norm(weight.detach().float() - before)
            norms.append(torch.stack([torch.linalg.vector_norm(before), change]))
        numbers = torch.stack(norms).tolist()
        gains = [
            norm / math.sqrt(weight.numel()) * math.sqrt(sum(weight.shape) / 2)
            for (norm, _), weight in zip(numbers, self.weights, strict=True)
        ]
        sums, passed = dict.fromkeys(Side, 0.0), 0.0
        for number, (side, layer, branch) in enumerate(self.places):
            alpha = residual_weight(layer, branch.sublayer)
            v, w = gains[2 * number : 2 * number + 2]
            (_, change_v), (_, change_w) = numbers[2 * number : 2 * number + 2]
            sums[side] += math.hypot(v, w) / alpha * math.hypot(change_v, change_w)
            if branch.sublayer is Sublayer.ENCODER_ATTN:
                passed += v * w / alpha
        if len({side for side, *_ in self.places}) == 1:
            passed = 1.0
        bound = passed * sums[Side.ENCODER] + sums[Side.DECODER]
        width = self.weights[-1].size(0)  # C, as the last weight is fc2 [C, F] of the top layer
        return math.sqrt(width) * bound
