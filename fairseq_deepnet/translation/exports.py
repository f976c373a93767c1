"""CTranslate2 folders of runs, made when first needed and kept while the checkpoint is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fairseq_deepnet.checkpoints.choice import Model
from fairseq_deepnet.export.command import to_ctranslate2
from fairseq_deepnet.provenance import shown

_BEST: Final = "checkpoint_best"


def exported(model: Model, data: Path | None, quantization: str) -> Path:
    """The folder of a model: export/ctranslate2-QUANTIZATION in its run; for another checkpoint
    than the best, and for one that belongs to no run, with the checkpoint's name before.

    Raises ValueError for a model that CTranslate2 does not compute, with the reason, and where
    nothing can be written.
    """
    place = (model.run or model.path.resolve().parent) / "export"
    name = f"ctranslate2-{quantization}"
    if model.path.stem != _BEST or model.run is None:
        name = f"{model.path.stem}.{name}"
    try:
        return to_ctranslate2(model, place / name, quantization, data)
    except PermissionError as error:
        raise ValueError(
            f"{shown(place)} cannot be written ({error.strerror}): export the model elsewhere with "
            "deepnet export --to ctranslate2 --output FOLDER, and name that folder"
        ) from error
