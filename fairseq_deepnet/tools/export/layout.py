"""What an exported folder is called and holds: names that its writer and its readers share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fairseq_deepnet.tools.trained_model import TrainedModel

RECORD: Final = "export.json"
"""In a CTranslate2 folder: the record of its export. A fairseq checkpoint holds it as `export`."""
SHAPE: Final = {
    "request": dict,
    "quantization": str,
    "languages": list,
    "subwords": dict,
    "max_positions": list,
}
"""Keys that export.json must have."""
AGAIN: Final = "copy it again, or export the model anew with --force"
MODEL: Final = "model.bin"
"""In a CTranslate2 folder: the weights. CTranslate2 knows its models by this name."""
BLANK: Final = "<blank>"
"""fairseq's <pad> in an exported vocabulary, as CTranslate2 calls it."""
QUANTIZATIONS: Final = (
    *("float32", "int8", "int8_float32", "int8_bfloat16", "int8_float16"),
    *("int16", "bfloat16", "float16"),
)
"""CTranslate2's types of weights that this exports to."""
BEAM: Final = 5
MAX_LENGTH: Final = 200
"""Longest translation in subwords, as fairseq-generate has it (--max-len-a 0 --max-len-b 200)."""
HUGGINGFACE: Final = "huggingface"
NO_SAFETENSORS: Final = (
    "safetensors is not installed: pip install 'transformers>=4.57,<6' brings it (the extra: pip"
    " install 'fairseq_deepnet[huggingface]')"
)
NO_CTRANSLATE2: Final = (
    "ctranslate2 is not installed: pip install 'ctranslate2>=4,<5' (the extra: pip install"
    " 'fairseq_deepnet[ctranslate2]')"
)


def is_exported(folder: Path) -> bool:
    """Return True if a folder holds a CTranslate2 model."""
    return (folder / MODEL).is_file()


def exports_of(model: TrainedModel) -> Path:
    """Return where a model's exports are: in its run, or beside a checkpoint without one."""
    return (model.run or model.path.resolve().parent) / "export"


def folder_name(model: TrainedModel, name: str) -> str:
    """Return the usual name of a folder: any but a run's best checkpoint has its name before."""
    from fairseq_deepnet.tools.trained_model import BEST  # imports torch

    if model.run is not None and model.path.name == BEST:
        return name
    return f"{model.path.stem}.{name}"


def ctranslate2_name(model: TrainedModel, quantization: str) -> str:
    """Return the usual name of a CTranslate2 folder."""
    return folder_name(model, f"ctranslate2-{quantization}")
