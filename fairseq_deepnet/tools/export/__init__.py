"""Export of trained models to stock fairseq, CTranslate2 and Hugging Face.

Writers and readers of exports share the constants below. This module does not import torch.
"""

from typing import Final

RECORD: Final = "export.json"
"""Record file of an exported folder; an exported checkpoint stores its record as `export`."""
KEYS: Final = {"quantization": str, "languages": list, "subwords": dict, "max_positions": list}
"""Required keys of export.json in a CTranslate2 folder."""
AGAIN: Final = "copy it again, or export the model again"
MODEL: Final = "model.bin"
"""Weight file in a CTranslate2 folder, by which CTranslate2 recognises its models."""
BLANK: Final = "<blank>"
"""CTranslate2's name for fairseq's <pad>."""
QUANTIZATIONS: Final = (
    *("float32", "int8", "int8_float32", "int8_bfloat16", "int8_float16"),
    *("int16", "bfloat16", "float16"),
)
"""CTranslate2's weight types."""
MAX_LENGTH: Final = 200
"""Maximum length of translations in subwords, as in fairseq-generate (--max-len-b 200)."""
NO_CTRANSLATE2: Final = "ctranslate2 is not installed: pip install 'ctranslate2>=4,<5'"
NO_HUGGINGFACE: Final = "{package} is not installed: pip install 'transformers>=4.57,<6'"
