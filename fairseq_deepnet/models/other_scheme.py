"""Refuse to train on from a checkpoint of another scheme, unless it is said.

fairseq compares names and shapes of parameters, which most schemes share, and takes the rest from
the command line: a model would continue as another function than the one that was trained, and
overwrite it.
"""

from __future__ import annotations

import logging
import math
from typing import Any, Final

from fairseq.file_io import PathManager

from ..checkpoints import LAST, recorded_arguments
from ..errors import ConfigurationError
from ..observers import broadcast_from_rank0
from ..schemes import ResidualScheme, Side
from .options import FROZEN_NORMS, KIND_OF, model_name
from .scheme_options import scheme_in

logger = logging.getLogger(__name__)

OPTION: Final = "--allow-other-scheme"


def refuse_other_scheme(trainer: Any, filename: str, reset_optimizer: bool) -> None:
    """Raise ConfigurationError in every process where rank 0, which reads, finds another scheme."""
    refusal = None
    if trainer.data_parallel_rank == 0:
        refusal = _refusal(trainer.cfg, filename, reset_optimizer)
    refusal = broadcast_from_rank0(trainer, refusal)
    if refusal is not None:
        raise ConfigurationError(refusal)


def _refusal(cfg: Any, filename: str, reset_optimizer: bool) -> str | None:
    """Return why a training may not begin with this checkpoint; None where it may."""
    if not PathManager.isfile(filename):
        return None
    try:
        args = recorded_arguments(PathManager.get_local_path(filename))
    except ValueError:
        return None  # fairseq reads it next, and says what is wrong with it
    if not (hasattr(args, "residual_scheme") or hasattr(cfg.model, "residual_scheme")):
        return None  # fairseq's own, by its own rules
    chosen = scheme_in(cfg.model)
    try:
        trained = scheme_in(args)
        if trained is None or chosen is None:
            return None
        if not differ(trained, chosen):
            return _other_norms(filename, args, cfg.model, reset_optimizer)
        what = f"{filename} was trained with {trained}, not {chosen}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{filename}: its record of the residual scheme cannot be read ({error!r})"
    given = f"give {_as_options(trained, cfg.model)}"
    paths = cfg.checkpoint
    elsewhere = (paths.finetune_from_model, getattr(paths, "continue_once", None))
    if paths.restore_file == LAST and filename not in elsewhere:
        return f"{what}: {given} to continue with it, or another --save-dir to start again"
    if getattr(cfg.model, "allow_other_scheme", False):
        logger.warning("%s; its weights are trained on as those of the latter", what)
        return _other_norms(filename, args, cfg.model, reset_optimizer)
    return f"{what}: {given}, or {OPTION} to train its weights on as those of the latter"


def _other_norms(filename: str, trained: Any, chosen: Any, reset_optimizer: bool) -> str | None:
    """Return why Adam's moments of a checkpoint are not those of the parameters to be trained."""
    was, now = (getattr(args, "freeze_norms", "none") for args in (trained, chosen))
    if reset_optimizer and set(FROZEN_NORMS[now]) - set(FROZEN_NORMS[was]):
        logger.warning(
            "--freeze-norms %s keeps the LayerNorms of the layers as %s has them, which was"
            " trained with %s; 1 and 0 they are in a training that starts again",
            *(now, filename, was),
        )
    if reset_optimizer or was == now:
        return None
    return (
        f"{filename} was trained with --freeze-norms {was}, not {now}: give that, or"
        " --reset-optimizer"
    )


def differ(one: ResidualScheme, other: ResidualScheme) -> bool:
    """Return True if two schemes have another name, variant or alpha.

    Their depths may differ where that changes no alpha: fairseq compares layers by itself.
    """
    if (one.name, one.variant) != (other.name, other.variant):
        return True
    sides = one.alphas.keys() | other.alphas.keys()
    return any(
        not math.isclose(one.alphas.get(side, 0), other.alphas.get(side, 0), rel_tol=1e-6)
        for side in sides
    )


def _as_options(scheme: ResidualScheme, args: Any) -> str:
    """Return the options that choose a scheme, where `args` are those of the command line."""
    words = ["--residual-scheme", scheme.name]
    if not hasattr(args, "residual_scheme"):
        words = ["--arch", KIND_OF[str(model_name(args))].arch, *words]
    if scheme.variant:
        words += ["--scheme-variant", scheme.variant]
    for side in Side:
        if scheme.depths.of(side):
            words += [f"--{side.value}-layers", str(scheme.depths.of(side))]
    return " ".join(words)
