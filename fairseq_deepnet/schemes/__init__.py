"""Residual schemes by name. To add a scheme, write a module and list its class in `SCHEMES`."""

from ..errors import ConfigurationError
from .admin import Admin, AdminLog
from .b2t import B2T
from .base import (
    Depths,
    NormPlacement,
    Place,
    ResidualScheme,
    Role,
    Side,
    Sublayer,
)
from .branchnorm import BranchNorm
from .deepnorm import DeepNorm, Gains, gains
from .dlcl import DLCL
from .ds_init import DSInit
from .fixup import RFixup, TFixup
from .ln_scaling import LNScaling
from .normformer import NormFormer
from .peri_ln import PeriLN
from .plain import PostLN, PostLNInit, PreLN
from .resi_dual import ResiDual
from .residual import Combination, LayerNorm, PostNormResidual, PreNormResidual, Residual, Stream
from .rezero import ReZero
from .sub_ln import SubLN

SCHEMES: dict[str, type[ResidualScheme]] = {
    scheme.name: scheme
    for scheme in (
        *(DeepNorm, PostLN, PostLNInit, DSInit, Admin, AdminLog, B2T, ResiDual, BranchNorm),
        *(ReZero, RFixup, TFixup),
        *(PreLN, DLCL, NormFormer, SubLN, PeriLN, LNScaling),
    )
}
DEFAULT_SCHEME = DeepNorm.name


def scheme_class(name: str, what: str = "residual scheme") -> type[ResidualScheme]:
    """Return the class of the scheme called `name`.

    Raises:
        ConfigurationError: if no scheme has this name; the message begins with `what`.
    """
    if name not in SCHEMES:
        raise ConfigurationError(f"{what} {name} is unknown; choose one of {', '.join(SCHEMES)}")
    return SCHEMES[name]


__all__ = [
    "DEFAULT_SCHEME",
    "SCHEMES",
    "Combination",
    "DeepNorm",
    "Depths",
    "Gains",
    "LayerNorm",
    "NormPlacement",
    "Place",
    "PostLN",
    "PostLNInit",
    "PostNormResidual",
    "PreLN",
    "PreNormResidual",
    "Residual",
    "ResidualScheme",
    "Role",
    "Side",
    "Stream",
    "Sublayer",
    "gains",
    "scheme_class",
]
