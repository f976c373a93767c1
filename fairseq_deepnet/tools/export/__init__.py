"""Export of trained models to stock fairseq, CTranslate2 and Hugging Face.

Writers and readers of exports share these names. Importing them does not load torch.
"""

from pathlib import Path
from typing import Final

RECORD: Final = "export.json"
"""Record of an export in its folder. A fairseq checkpoint contains it under the key `export`."""
KEYS: Final = {"quantization": str, "languages": list, "subwords": dict, "max_positions": list}
"""Required keys of export.json in a CTranslate2 folder."""
AGAIN: Final = "copy it again, or export the model again with --force"
MODEL: Final = "model.bin"
"""File of the weights in a CTranslate2 folder. CTranslate2 recognises its models by this name."""
BLANK: Final = "<blank>"
"""CTranslate2's name for fairseq's <pad> in an exported vocabulary."""
QUANTIZATIONS: Final = (
    *("float32", "int8", "int8_float32", "int8_bfloat16", "int8_float16"),
    *("int16", "bfloat16", "float16"),
)
"""Types of weights that CTranslate2 exports support."""
MAX_LENGTH: Final = 200
"""Longest translation in subwords, as in fairseq-generate (--max-len-a 0 --max-len-b 200)."""
NO_CTRANSLATE2: Final = "ctranslate2 is not installed: pip install 'ctranslate2>=4,<5'"
NO_HUGGINGFACE: Final = "{package} is not installed: pip install 'transformers>=4.57,<6' brings it"


def is_exported(folder: Path) -> bool:
    """Return True if a folder contains a CTranslate2 model."""
    return (folder / MODEL).is_file()
