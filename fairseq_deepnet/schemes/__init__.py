"""Residual schemes by name. To add a scheme, write a module and list its class in `SCHEMES`."""

from ..errors import ConfigurationError
from .admin import Admin, AdminLog
from .base import Depths, NormPlacement, Place, ResidualScheme, Role, Side, Sublayer
from .branchnorm import BranchNorm
from .deepnorm import DeepNorm, gains
from .dlcl import DLCL
from .plain import DSInit, PostLN, PostLNInit, PreLN
from .pre_ln_variants import LNScaling, NormFormer, PeriLN, SubLN
from .residual import Combination, LayerNorm, PostNormResidual, Residual, Stream
from .two_streams import B2T, ResiDual
from .without_norm import ReZero, RFixup, TFixup

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
    "LayerNorm",
    "NormPlacement",
    "Place",
    "PostLN",
    "PostNormResidual",
    "PreLN",
    "Residual",
    "ResidualScheme",
    "Role",
    "Side",
    "Stream",
    "Sublayer",
    "gains",
    "scheme_class",
]
