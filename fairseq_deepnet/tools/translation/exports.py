"""CTranslate2 folders of runs, made when first needed and kept while the checkpoint is the same."""

from __future__ import annotations

from pathlib import Path

from fairseq_deepnet.files import shown
from fairseq_deepnet.tools.checkpoints.choice import Model
from fairseq_deepnet.tools.export.command import to_ctranslate2
from fairseq_deepnet.tools.export.layout import ctranslate2_name, exports_of


def exported(model: Model, data: Path | None, quantization: str) -> Path:
    """The folder of a model, under its usual name among its exports.

    Raises ValueError for a model that CTranslate2 does not compute, with the reason, and where
    nothing can be written.
    """
    place = exports_of(model)
    try:
        output = place / ctranslate2_name(model, quantization)
        return to_ctranslate2(model, output, quantization, data)
    except PermissionError as error:
        raise ValueError(
            f"{shown(place)} cannot be written ({error.strerror}): export the model elsewhere with "
            "deepnet export --to ctranslate2 --out FOLDER, and name that folder"
        ) from error
