"""Residual schemes by name. A new scheme is a file here and a line in the list below."""

from ..errors import ConfigurationError
from .admin import Admin, AdminLog
from .base import (
    Depths,
    NormPlacement,
    Place,
    ResidualScheme,
    Role,
    Side,
    Sublayer,
)
from .deepnorm import DeepNorm, Gains, gains
from .dlcl import DLCL
from .ds_init import DSInit
from .fixup import RFixup, TFixup
from .normformer import NormFormer
from .plain import PostLN, PostLNInit, PreLN
from .residual import Combination, PostNormResidual, PreNormResidual, Residual
from .rezero import ReZero

SCHEMES: dict[str, type[ResidualScheme]] = {
    scheme.name: scheme
    for scheme in (
        *(DeepNorm, PostLN, PostLNInit, DSInit, Admin, AdminLog),
        *(ReZero, RFixup, TFixup),
        *(PreLN, DLCL, NormFormer),
    )
}
DEFAULT_SCHEME = DeepNorm.name


def scheme_class(name: str) -> type[ResidualScheme]:
    """The scheme called `name`; ConfigurationError with the known names otherwise."""
    if name not in SCHEMES:
        raise ConfigurationError(
            f"--residual-scheme {name} is unknown; choose one of {', '.join(SCHEMES)}"
        )
    return SCHEMES[name]


__all__ = [
    "DEFAULT_SCHEME",
    "DLCL",
    "SCHEMES",
    "Admin",
    "AdminLog",
    "Combination",
    "DSInit",
    "DeepNorm",
    "Depths",
    "Gains",
    "NormFormer",
    "NormPlacement",
    "Place",
    "PostLN",
    "PostLNInit",
    "PostNormResidual",
    "PreLN",
    "PreNormResidual",
    "RFixup",
    "ReZero",
    "Residual",
    "ResidualScheme",
    "Role",
    "Side",
    "Sublayer",
    "TFixup",
    "gains",
    "scheme_class",
]
