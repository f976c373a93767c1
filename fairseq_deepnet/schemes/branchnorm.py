"""BranchNorm: Post-LN with a branch weight that grows during training (Liu et al., 2023)."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .base import NormPlacement, Place, ResidualScheme, Sublayer
from .residual import Map, Residual

UPDATES = 4000  # length of the growth if the learning rate has no warm-up


class GrowingBranchResidual(Residual):
    """LN(x + a G(x)) with the branch weight a = min(1, t / T) in update t (from 1); T is `growth`.

    The weight is 1 before training. It is a buffer, so resumed runs and translation use the saved
    value. In fine-tuning, t starts at 1 again, but the weight never falls below the loaded value.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scale: Tensor
        self.register_buffer("scale", torch.ones(1))
        self.growth = UPDATES  # T
        self.reached = 0.0  # the loaded checkpoint's a

    @property
    def alpha(self) -> float:
        """Residual weight of the equivalent sublayer LN(alpha x + G(x))."""
        return 1 / self.scale.item()

    def set_num_updates(self, num_updates: int) -> None:
        """Set the branch weight for the next update; `num_updates` counts the completed ones."""
        self.scale.fill_(min(1.0, max(self.reached, (num_updates + 1) / self.growth)))

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *more: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *more)
        if f"{prefix}scale" in state_dict:
            self.reached = self.scale.item()

    def leave(self, x: Tensor, branch: Tensor, norm: Map | None, dropout: Map) -> Tensor:
        assert norm is not None
        return norm(torch.addcmul(x, dropout(branch), self.scale))


class BranchNorm(ResidualScheme):
    """LN(x + a G(x)), which equals Post-LN once the branch weight has grown linearly to 1.

    According to the paper's abstract and other descriptions, the branch weight grows to 1, its
    value in Post-LN, within T updates. As there is no public code, we assume that the growth is
    linear and that T is the number of warm-up updates, or 4,000 without warm-up. Initial weights
    are Xavier-normal, as in most schemes here.
    """

    name: ClassVar[str] = "branchnorm"
    summary: ClassVar[str] = "LN(x + a G(x)), a grows to 1 over the warm-up"
    norm: ClassVar[NormPlacement] = NormPlacement.POST
    bounded: ClassVar[bool] = True
    stock_initialisation: ClassVar[bool] = True

    def build_residual(self, place: Place, sublayer: Sublayer, embed_dim: int) -> Residual:
        return GrowingBranchResidual()

    def residual_weight(self, place: Place, learned: Mapping[str, Tensor]) -> Tensor:
        return 1 / learned["scale"]

    def prepare(self, model: nn.Module, warmup: int) -> None:
        for module in model.modules():
            if isinstance(module, GrowingBranchResidual):
                module.growth = warmup or UPDATES
