"""Trained models for stock fairseq, CTranslate2 and Hugging Face.

These names are shared by writers and readers of an export; importing them loads no torch.
"""

from pathlib import Path
from typing import Final

RECORD: Final = "export.json"
"""In an exported folder: the record of its export. A fairseq checkpoint has it as `export`."""
KEYS: Final = {
    "request": dict,
    "quantization": str,
    "languages": list,
    "subwords": dict,
    "max_positions": list,
}
"""Keys that export.json of a CTranslate2 folder must have."""
AGAIN: Final = "copy it again, or export the model again with --force"
MODEL: Final = "model.bin"
"""In a CTranslate2 folder: the weights. CTranslate2 recognises its models by this name."""
BLANK: Final = "<blank>"
"""fairseq's <pad> in an exported vocabulary, as CTranslate2 calls it."""
QUANTIZATIONS: Final = (
    *("float32", "int8", "int8_float32", "int8_bfloat16", "int8_float16"),
    *("int16", "bfloat16", "float16"),
)
"""CTranslate2's types of weights that this exports to."""
BEAM: Final = 5
MAX_LENGTH: Final = 200
"""Longest translation in subwords, as in fairseq-generate (--max-len-a 0 --max-len-b 200)."""
NO_CTRANSLATE2: Final = (
    "ctranslate2 is not installed: pip install 'ctranslate2>=4,<5' (the extra: pip install"
    " 'fairseq_deepnet[ctranslate2]')"
)
NO_HUGGINGFACE: Final = (
    "{package} is not installed: pip install 'transformers>=4.57,<6' brings it (the extra: pip"
    " install 'fairseq_deepnet[huggingface]')"
)


def is_exported(folder: Path) -> bool:
    """Return True if a folder contains a CTranslate2 model."""
    return (folder / MODEL).is_file()
