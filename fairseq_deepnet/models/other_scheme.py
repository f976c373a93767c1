"""Check that training continues with the checkpoint's scheme, options and dictionaries.

fairseq compares only parameter names and shapes, which most schemes share. Without this check,
training would continue with another scheme and overwrite the checkpoint.
"""

import logging
import math
from typing import Any, Final

from fairseq.file_io import PathManager

from ..checkpoints import LAST, load_checkpoint, model_arguments
from ..dictionaries import LANGUAGES, RECORD, other_options
from ..errors import ConfigurationError
from ..observers import broadcast_from_rank0
from ..schemes import ResidualScheme, Side
from .options import FROZEN_NORMS, KIND_OF, model_name
from .scheme_options import scheme_in

logger = logging.getLogger(__name__)

OPTION: Final = "--allow-other-scheme"
_FIXED: Final = (
    *("activation_fn", "encoder_attention_heads", "decoder_attention_heads", "langtoks"),
    *("no_scale_embedding", "no_token_positional_embeddings", "untie_weights_roberta"),
    *("share_all_embeddings", "share_decoder_input_output_embed"),
)
"""Options that change a model's outputs, but not the names or shapes of its weights."""


def refuse_other_scheme(trainer: Any, filename: str, reset_optimizer: bool) -> None:
    """In every process, raise ConfigurationError if the checkpoint is of a different model."""
    refusal = None
    if trainer.data_parallel_rank == 0:
        refusal = _refusal(trainer.cfg, filename, reset_optimizer)
    refusal = broadcast_from_rank0(trainer, refusal)
    if refusal is not None:
        raise ConfigurationError(refusal)


def _refusal(cfg: Any, filename: str, reset_optimizer: bool) -> str | None:
    """Return the reason why training must not start from this checkpoint, or None."""
    if not PathManager.isfile(filename):
        return None
    try:
        args = model_arguments(load_checkpoint(PathManager.get_local_path(filename)))
    except ValueError as error:
        return str(error)
    if not (hasattr(args, "residual_scheme") or hasattr(cfg.model, "residual_scheme")):
        return None  # both models are fairseq's own
    before, now = (getattr(model, RECORD, None) or {} for model in (args, cfg.model))
    for side in before:
        if now.get(side, before[side]) != before[side]:
            change = f"{filename} was trained with another {side} dictionary"
            if not reset_optimizer:
                return f"{change}; use that run's data folder"
            logger.warning("%s: its embeddings now belong to other words", change)
    paths = cfg.checkpoint
    elsewhere = (paths.finetune_from_model, getattr(paths, "continue_once", None))
    is_resumed = paths.restore_file == LAST and filename not in elsewhere
    has_languages = is_resumed and getattr(args, "source_lang", None)
    fixed = (*_FIXED, *LANGUAGES) if has_languages else _FIXED
    chosen = scheme_in(cfg.model)
    try:
        trained = scheme_in(args)
        if trained is None or chosen is None:
            return None
        what, advice = f"{trained}, not {chosen}", f"give {_as_options(trained, cfg.model)}"
        if not differ(trained, chosen):
            what, advice = other_options(args, cfg.model, fixed), "use the former"
            if not what:
                return _other_norms(filename, args, cfg.model, reset_optimizer)
        what = f"{filename} was trained with {what}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{filename}: its record of the residual scheme cannot be read ({error!r})"
    if is_resumed:
        return f"{what}: {advice} to continue with it, or another --save-dir to start again"
    if getattr(cfg.model, "allow_other_scheme", False):
        logger.warning("%s; training continues with the latter", what)
        return _other_norms(filename, args, cfg.model, reset_optimizer)
    return f"{what}: {advice}, or {OPTION} to continue with the latter"


def _other_norms(filename: str, trained: Any, chosen: Any, reset_optimizer: bool) -> str | None:
    """Return the reason why the optimiser's state does not fit the trained parameters, or None."""
    was, now = (getattr(args, "freeze_norms", "none") for args in (trained, chosen))
    if reset_optimizer and FROZEN_NORMS.index(now) > FROZEN_NORMS.index(was):
        logger.warning(
            "--freeze-norms %s keeps the LayerNorms of the layers at their values in %s, which was"
            " trained with %s; they are 1 and 0 only in a new run",
            *(now, filename, was),
        )
    if reset_optimizer or was == now:
        return None
    return (
        f"{filename} was trained with --freeze-norms {was}, not {now}: use the former, or give"
        " --reset-optimizer"
    )


def differ(first: ResidualScheme, second: ResidualScheme) -> bool:
    """Return True if two schemes differ in name, variant or alpha.

    Depths are not compared, because fairseq detects a different depth by its parameter names.
    """
    if (first.name, first.variant) != (second.name, second.variant):
        return True
    sides = first.alphas.keys() | second.alphas.keys()
    return any(
        not math.isclose(first.alphas.get(side, 0), second.alphas.get(side, 0), rel_tol=1e-6)
        for side in sides
    )


def _as_options(scheme: ResidualScheme, args: Any) -> str:
    """Return the options that a command line with these `args` needs to select `scheme`."""
    words = ["--residual-scheme", scheme.name]
    if not hasattr(args, "residual_scheme"):
        words = ["--arch", KIND_OF[str(model_name(args))].arch, *words]
    if scheme.variant:
        words += ["--scheme-variant", scheme.variant]
    for side in Side:
        if scheme.depths.of(side):
            words += [f"--{side.value}-layers", str(scheme.depths.of(side))]
    return " ".join(words)
