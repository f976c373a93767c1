"""Admin: LN(w * x + G(x)), with w initialised from lower branches' variances (Liu et al., 2020)."""

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
    """LN((w + o) * x + G(x)) with a learned w [C], initially 1, and an offset o [1] from profiling.

    A half-precision optimiser copies parameters before the first batch, so its first step would
    overwrite any value that profiling had assigned to a parameter. Therefore profiling sets o, a
    buffer, and the weight of x is omega = w + o. Weight decay acts on w, not on omega.
    """

    def __init__(self, side: Side, embed_dim: int) -> None:
        super().__init__(embed_dim, 1.0)
        self.side = side
        self.offset: Tensor
        self.register_buffer("offset", torch.zeros(1))
        self.profile: Profile | None = None

    @property
    def omega(self) -> Tensor:
        """Residual weight, [C]."""
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
    """Residual weights omega of a stack's sublayers, from the lowest to the highest.

    omega_1 = 1 and omega_{i+1}^2 = Var[omega_i x_{i-1}] + Var[G_i]. Since LayerNorm sets
    Var[x_i] = 1, omega_{i+1}^2 is Var[x_0] plus the sum of Var[G_j] for j <= i. The embeddings x_0
    are not normalised and are zero at padding.
    """

    def __init__(self) -> None:
        self.omegas: list[float] = []
        self.next_omega = 1.0

    def add(self, residual: Tensor, branch: Tensor) -> None:
        """Compute the next omega from a sublayer's weighted residual and branch, both [B, T, C].

        Variances are computed over all elements of the batch. In distributed training they are
        averaged over processes, so that all processes set the same omega.
        """
        self.omegas.append(self.next_omega)
        total = residual.float().var(correction=0) + branch.float().var(correction=0)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(total)
            total /= torch.distributed.get_world_size()
        self.next_omega = math.sqrt(total.item())


class ProfilingPass:
    """Forward pre-hook that sets omega in an extra forward pass before the first training step.

    All processes run this pass together, on their first batch, in training mode (dropout affects
    the variances) and without gradients. The pass is skipped if a checkpoint has set omega.
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
            # torch.compile would break the graph in every sublayer, where a variance is read.
            with torch.no_grad(), torch.compiler.set_stance("force_eager"):
                model.forward(*args, **kwargs)
        finally:
            for residual in residuals:
                residual.profile = None
        for side, profile in profiles.items():
            if profile.omegas:
                logger.info(
                    "admin: the %s's w grows from %.4g to %.4g over %d sublayers (one batch)",
                    *(side.value, profile.omegas[0], profile.omegas[-1], len(profile.omegas)),
                )


class Admin(ResidualScheme):
    """Admin (Liu et al., EMNLP 2020), with profiling before the run's first update.

    omega is learned. Its initial value, one number per sublayer, follows the authors' code, which
    includes Var[omega_i x_{i-1}]; the paper's formula sums only branch variances. The authors
    profile in a separate run on one device and write omega to a file. Here, each device runs its
    first batch twice. Initial weights are Xavier-normal, as in most schemes here. The authors used
    the initialisation of their fairseq version. `--init stock` differs from it only in the
    feed-forward, where the authors' weights are Xavier-uniform and their biases zero.
    """

    name: ClassVar[str] = "admin"
    summary: ClassVar[str] = "LN(w * x + G(x)), w learned, initially from lower branches' variances"
    norm: ClassVar[NormPlacement] = NormPlacement.POST
    bounded: ClassVar[bool] = True
    layer_drop: ClassVar[bool] = False
    stock_initialisation: ClassVar[bool] = True

    def default_alpha(self, side: Side) -> None:
        return None

    def build_residual(self, place: Place, sublayer: Sublayer, embed_dim: int) -> Residual:
        return AdminResidual(place.side, embed_dim)

    def residual_weight(self, place: Place, learned: Mapping[str, Tensor]) -> Tensor:
        return learned["weight"] + learned["offset"]

    def prepare(self, model: nn.Module, warmup: int) -> None:
        model.register_forward_pre_hook(ProfilingPass(), with_kwargs=True)


class AdminLog(ResidualScheme):
    """Admin without profiling, as in the authors' admin-torch: the initial omega depends on depth.

    In a stack with n sublayers (2N or 3M), every omega is initially sqrt((n + 1) / ln(n + 1) - 1),
    so that an update changes the output by O(log n). With the variant `constant`, omega is sqrt(n)
    and an update changes the output by O(1).
    """

    name: ClassVar[str] = "admin-log"
    summary: ClassVar[str] = "LN(w * x + G(x)), w learned, initially from the number of sublayers"
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
        """Return the initial residual weight of all sublayers on one side."""
        n = self.depths.sublayers(side)
        if self.variant == "constant":
            return math.sqrt(n)
        return math.sqrt((n + 1) / math.log(n + 1) - 1)

    def build_residual(self, place: Place, sublayer: Sublayer, embed_dim: int) -> Residual:
        return WeightedPostNormResidual(embed_dim, self.omega(place.side))

    def residual_weight(self, place: Place, learned: Mapping[str, Tensor]) -> Tensor:
        return learned["weight"]
