"""The initial state that accumulated updates count from, and the probe they are measured on."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from fairseq import utils
from torch import Tensor, nn

from ..checkpoints import save_checkpoint
from .probe import NetInput, Probe, first_sentences

logger = logging.getLogger(__name__)

NAME: Final = "monitor_probe.pt"


class Origin:
    """The probe, F(x, theta_0) on it, and of theta_0 what the bound needs.

    A run that is resumed goes on from the origin of its first start: the probe and what the model
    made of it lie in a file. theta_0 is as large as the model and does not: such a run builds its
    model by the same seed before it loads the checkpoint. A sum over all parameters as they were
    built shows whether the file is of this run.

    Args:
        model: as it was built.
        padding: index of the padding symbol.
        weights: the parameters whose initial values are needed; none where no bound is wanted.
        file: where probe and features are kept.
        marked: the parameters that the sum is of; none where no probe is wanted.
    """

    def __init__(
        self,
        model: nn.Module,
        padding: int,
        weights: Sequence[Tensor],
        file: Path,
        marked: Sequence[Tensor],
    ) -> None:
        self.model, self.padding, self.file = model, padding, file
        self.probe: Probe | None = None
        self.features: Tensor | None = None  # [n, C]
        self.weights: list[Tensor] | None = None  # in host memory
        self._live = weights
        self._built = copy_to_host(weights)
        self._mark = fingerprint(marked)

    def prepare(self, trainer: Any, samples: Sequence[Any]) -> None:
        """Choose the probe, unless there is one."""
        if self.probe is None:
            net_input = first_sentences(trainer, samples)
            if trainer.cuda:
                net_input = utils.move_to_cuda(net_input)
            self.probe = Probe(net_input, self.padding)

    def take(self) -> None:
        """Make the present parameters theta_0, unless there is one; write the file."""
        if self.features is not None or self.probe is None:
            return
        self.weights = self._built = copy_to_host(self._live)
        self.features = self.probe.features(self.model)
        self._save(self.probe.net_input, self.features)

    def _save(self, net_input: NetInput, features: Tensor) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "net_input": {name: value.cpu() for name, value in net_input.items()},
            "features": features.cpu(),
            "fingerprint": self._mark,
        }
        save_checkpoint(state, self.file)

    def resume(self) -> None:
        """Go on from what the first start left; a warning where there is nothing."""
        device = next(self.model.parameters()).device
        try:
            state = torch.load(self.file, map_location=device, weights_only=True)
            mark, features = float(state["fingerprint"]), state["features"]
            probe = Probe(dict(state["net_input"]), self.padding)
        except FileNotFoundError:
            logger.warning("%s is not there: model updates count from here on", self.file)
            return
        except Exception as error:  # torch.load raises whatever a damaged file leads it to
            logger.warning(
                "%s cannot be read (%s): model updates count from here on", self.file, error
            )
            return
        if not math.isclose(mark, self._mark, rel_tol=1e-6):
            logger.warning(
                "%s is of a training with other initial weights (another --seed?): model updates"
                " count from here on",
                self.file,
            )
            return
        self.probe, self.features, self.weights = probe, features, self._built


def copy_to_host(weights: Sequence[Tensor]) -> list[Tensor]:
    """Return copies in host memory: theta_0 is seldom needed, the device's memory often."""
    return [weight.detach().to("cpu", copy=True) for weight in weights]


def fingerprint(weights: Sequence[Tensor]) -> float:
    """Return a number that other weights would not have: the sum of absolute values."""
    return math.fsum(float(weight.detach().abs().sum(dtype=torch.float64)) for weight in weights)
