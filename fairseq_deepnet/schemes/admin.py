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
    """LN((w + o) * x + G(x)): w [C] is learned from 1, o [1] is set once by profiling, 0 before.

    Two tensors for one omega = w + o, because an optimiser of half-precision weights copies them
    before the first batch is seen: what profiling wrote into a parameter would be undone by the
    first step. o is a buffer, which no optimiser holds; omega moves as a parameter of its own
    would, save for weight decay, which draws w and not omega to 0.
    """

    def __init__(self, side: Side, embed_dim: int) -> None:
        super().__init__(embed_dim, 1.0)
        self.side = side
        self.offset: Tensor
        self.register_buffer("offset", torch.zeros(1))
        self.profile: Profile | None = None

    @property
    def omega(self) -> Tensor:
        """What multiplies the residual, [C]."""
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
    """omega of one stack's sublayers, from the input on: omega_1 = 1, omega_{i+1}^2 =
    Var[omega_i x_{i-1}] + Var[G_i], hence Var[x_0] + the sum of Var[G_j], j <= i: LayerNorm makes
    Var[x_i] = 1, and nothing normalises the embeddings x_0 (padding counts as zeros).
    """

    def __init__(self) -> None:
        self.omegas: list[float] = []
        self.next_omega = 1.0

    def add(self, residual: Tensor, branch: Tensor) -> None:
        """Pass a sublayer: its weighted residual and its branch after dropout, [B, T, C].

        Variances are over all elements of the batch; the mean over all processes of a distributed
        training, so that each of them sets the same omega.
        """
        self.omegas.append(self.next_omega)
        total = residual.float().var(correction=0) + branch.float().var(correction=0)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(total)
            total /= torch.distributed.get_world_size()
        self.next_omega = math.sqrt(total.item())


class ProfilingPass:
    """A forward pre-hook: before a model's first training forward, one more in which omega is set.

    It runs with the same batch, in training mode (the variances are those after dropout), without
    gradients, in every process at once. A model whose checkpoint brings omega is left alone.
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
            # uncompiled: reading a variance would break a graph in every sublayer
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
    """Admin as in Liu et al. 2020, profiled in the same command before the first update.

    omega is learned, starts at one number a sublayer, and follows the authors' code, which carries
    Var[omega_i x_{i-1}] along; the paper's formula is the sum of only the branches' variances.
    Theirs needs a run of its own on one device that writes a file; here the first batch (on each
    device) is run through once more. Weights start as all schemes' here, Xavier-normal. The
    authors' start is the fairseq of their time, whose feed-forward is Xavier-uniform with zero
    biases; `--init stock` is today's, which differs in just that.
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
    """Admin without profiling: omega from the depth alone, as in the authors' later admin-torch.

    n counts the sublayers of the stack, 2N or 3M. omega = sqrt((n + 1) / ln(n + 1) - 1) in every
    sublayer, for an output that changes by O(log n); the variant `constant` has sqrt(n), for O(1).
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
        """Return what a side's residual weights start at."""
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
