"""Admin: LN(w * x + G(x)), w from the variance of the branches below (Liu et al., EMNLP 2020)."""

import logging
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.distributed
from torch import Tensor, nn

from .base import NormPlacement, Place, ResidualScheme, Side, Sublayer
from .residual import Map, Residual, WeightedPostNormResidual

logger = logging.getLogger(__name__)


class AdminResidual(WeightedPostNormResidual):
    """LN((w + o) * x + G(x)): w [C] is learned and starts at 1; profiling sets o [1], 0 before.

    omega = w + o is split into two tensors because a half-precision optimiser copies the weights
    before the first batch: its first step would overwrite a parameter that profiling had set. o is
    a buffer, which no optimiser holds. omega moves as a parameter would, except that weight decay
    pulls w, not omega, towards 0.
    """

    def __init__(self, side: Side, embed_dim: int) -> None:
        super().__init__(embed_dim, 1.0)
        self.side = side
        self.offset: Tensor
        self.register_buffer("offset", torch.zeros(1))
        self.profile: Profile | None = None

    @property
    def omega(self) -> Tensor:
        """The residual weight, [C]."""
        return self.weight + self.offset

    def leave(self, x: Tensor, branch: Tensor, norm: Map | None, dropout: Map) -> Tensor:
        assert norm is not None
        branch = dropout(branch)
        if self.profile is not None:
            self.offset.fill_(self.profile.next_omega - 1.0)
            self.profile.add(self.omega * x, branch)
        return norm(torch.addcmul(branch, x, self.omega))

    def learned(self) -> dict[str, Tensor]:
        return {"residual_weight": self.omega}


class Profile:
    """omega of each sublayer of a stack, starting at the input.

    omega_1 = 1 and omega_{i+1}^2 = Var[omega_i x_{i-1}] + Var[G_i]. As LayerNorm makes
    Var[x_i] = 1, this equals Var[x_0] + the sum of Var[G_j] for j <= i. The embeddings
    x_0 are not normalised; padding counts as zeros.
    """

    def __init__(self) -> None:
        self.omegas: list[float] = []
        self.next_omega = 1.0

    def add(self, residual: Tensor, branch: Tensor) -> None:
        """Add a sublayer's weighted residual and its branch after dropout, both [B, T, C].

        Variances are over all elements of the batch. In distributed training they are averaged over
        the processes, so that every process sets the same omega.
        """
        self.omegas.append(self.next_omega)
        total = residual.float().var(correction=0) + branch.float().var(correction=0)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(total)
            total /= torch.distributed.get_world_size()
        self.next_omega = math.sqrt(total.item())


class ProfilingPass:
    """Forward pre-hook that sets omega in an extra forward pass before the first training step.

    The pass uses the same batch, in training mode (variances are measured after dropout), without
    gradients, and runs in all processes at once. It is skipped if a checkpoint has set omega.
    """

    def __init__(self) -> None:
        self.is_done = False

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.is_done or not model.training:
            return
        self.is_done = True
        residuals = [module for module in model.modules() if isinstance(module, AdminResidual)]
        if any(residual.offset.any() for residual in residuals):
            return
        profiles = {side: Profile() for side in Side}
        for residual in residuals:
            residual.profile = profiles[residual.side]
        try:
            # not compiled: reading a variance would break the graph in every sublayer
            with torch.no_grad(), torch.compiler.set_stance("force_eager"):
                model.forward(*args, **kwargs)
        finally:
            for residual in residuals:
                residual.profile = None
        for side, profile in profiles.items():
            if profile.omegas:
                logger.info(
                    "admin: the %s's omega grows from %.4g to %.4g over %d sublayers (one batch)",
                    *(side.value, profile.omegas[0], profile.omegas[-1], len(profile.omegas)),
                )


class Admin(ResidualScheme):
    """Admin as in Liu et al. 2020, profiled before the first update of the training command.

    omega is learned and starts at one number per sublayer. It follows the authors' code, which
    includes Var[omega_i x_{i-1}]; the paper's formula sums only the variances of the branches. The
    authors profile in a separate run on one device that writes a file. Here each device runs its
    first batch twice. Initial weights are Xavier-normal, as in every scheme here. The authors used
    the initialisation of their fairseq, in which the feed-forward is Xavier-uniform with zero
    biases; `--init stock` uses that of today's fairseq, which differs only there.
    """

    name: ClassVar[str] = "admin"
    summary: ClassVar[str] = "LN(w * x + G(x)), w learned, from the variance of the branches below"
    norm: ClassVar[NormPlacement] = NormPlacement.POST
    bounded: ClassVar[bool] = True
    layer_drop: ClassVar[bool] = False
    stock_initialisation: ClassVar[bool] = True

    def default_alpha(self, side: Side) -> None:
        return None

    def build_residuals(
        self, place: Place, sublayers: tuple[Sublayer, ...], embed_dim: int
    ) -> dict[Sublayer, Residual]:
        return {sublayer: AdminResidual(place.side, embed_dim) for sublayer in sublayers}

    def residual_weight(self, place: Place, learned: Mapping[str, Tensor]) -> Tensor:
        return learned["weight"] + learned["offset"]

    def prepare(self, model: nn.Module, warmup: int) -> None:
        model.register_forward_pre_hook(ProfilingPass(), with_kwargs=True)


class AdminLog(ResidualScheme):
    """Admin without profiling: omega depends only on depth, as in the authors' admin-torch.

    n is the number of sublayers of the stack, 2N or 3M. omega = sqrt((n + 1) / ln(n + 1) - 1) in
    every sublayer, so that the output changes by O(log n). The variant `constant` uses sqrt(n), for
    a change of O(1).
    """

    name: ClassVar[str] = "admin-log"
    summary: ClassVar[str] = "LN(w * x + G(x)), w learned, from the number of sublayers"
    norm: ClassVar[NormPlacement] = NormPlacement.POST
    bounded: ClassVar[bool] = True
    variants: ClassVar[Mapping[str, str]] = {
        "logarithmic": "omega = sqrt((n + 1) / ln(n + 1) - 1)",
        "constant": "omega = sqrt(n)",
    }
    stock_initialisation: ClassVar[bool] = True

    def default_alpha(self, side: Side) -> None:
        return None

    def omega(self, side: Side) -> float:
        """Return the initial residual weight of a side."""
        n = self.depths.sublayers(side)
        if self.variant == "constant":
            return math.sqrt(n)
        return math.sqrt((n + 1) / math.log(n + 1) - 1)

    def build_residuals(
        self, place: Place, sublayers: tuple[Sublayer, ...], embed_dim: int
    ) -> dict[Sublayer, Residual]:
        start = self.omega(place.side)
        return {sublayer: WeightedPostNormResidual(embed_dim, start) for sublayer in sublayers}

    def residual_weight(self, place: Place, learned: Mapping[str, Tensor]) -> Tensor:
        return learned["weight"]
