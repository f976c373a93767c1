"""Residual schemes by name. A new scheme is a file here and a line in the list below."""

from ..errors import ConfigurationError
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
from .plain import PostLN, PostLNInit, PreLN
from .residual import PostNormResidual, PreNormResidual, Residual

SCHEMES: dict[str, type[ResidualScheme]] = {
    scheme.name: scheme for scheme in (DeepNorm, PostLN, PostLNInit, PreLN)
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
    "SCHEMES",
    "DeepNorm",
    "Depths",
    "Gains",
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
    "Sublayer",
    "gains",
    "scheme_class",
]
