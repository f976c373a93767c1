"""The initial state that accumulated updates are measured from; it outlives a run that is resumed."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from .probe import NetInput

logger = logging.getLogger(__name__)

NAME: Final = "monitor_probe.pt"


class Reference:
    """F(x, theta_0) on the probe, and theta_0 as far as the bound needs it.

    What the probe is and what the model made of it lies in a file. theta_0 is as large as the model
    and does not: a run that goes on builds its model by the same seed before it loads the
    checkpoint, and a sum over all weights tells whether it did.

    Args:
        net_input: the probe's arguments.
        features: F(x, theta_0), [n, C].
        weights: what the bound needs of theta_0, in host memory; None where it is not known.
        fingerprint: of these weights.
    """

    def __init__(
        self,
        net_input: NetInput,
        features: Tensor,
        weights: list[Tensor] | None,
        fingerprint: float,
    ) -> None:
        self.net_input, self.features = net_input, features
        self.weights, self.fingerprint = weights, fingerprint

    def save(self, file: Path) -> None:
        """Write the file, whole or not at all."""
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f".{file.name}.part")
        state = {
            "net_input": {name: value.cpu() for name, value in self.net_input.items()},
            "features": self.features.cpu(),
            "fingerprint": self.fingerprint,
        }
        torch.save(state, unfinished)
        unfinished.replace(file)

    @classmethod
    def load(cls, file: Path, weights: list[Tensor], device: torch.device) -> Reference | None:
        """What an earlier start of the run left; None, with a warning, where there is nothing.

        Args:
            file: its name.
            weights: those of the model as it was built, before the checkpoint was loaded.
            device: of the model.
        """
        try:
            state = torch.load(file, map_location=device, weights_only=True)
            mark, net_input = float(state["fingerprint"]), dict(state["net_input"])
            features = state["features"]
        except FileNotFoundError:
            logger.warning("%s is not there: model updates count from this update on", file)
            return None
        except Exception as error:  # torch.load raises whatever a damaged file leads it to
            logger.warning("%s cannot be read (%s): model updates count from here on", file, error)
            return None
        known = math.isclose(mark, fingerprint(weights), rel_tol=1e-6)
        if weights and not known:
            logger.warning("the model was built with other weights than at first: no update_bound")
        return cls(net_input, features, weights if known else None, mark)


def copy_to_host(weights: Sequence[Tensor]) -> list[Tensor]:
    """Copies in host memory: theta_0 is seldom needed, and the device's memory often."""
    return [weight.detach().to("cpu", copy=True) for weight in weights]


def fingerprint(weights: Sequence[Tensor]) -> float:
    """A number that other weights would not have: the sum of absolute values."""
    return math.fsum(float(weight.detach().abs().sum(dtype=torch.float64)) for weight in weights)
