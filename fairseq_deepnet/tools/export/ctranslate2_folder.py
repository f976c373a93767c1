"""A CTranslate2 model with all that takes raw text to raw text: its folder stands alone."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from fairseq_deepnet.models.options import ENCODER_DECODER
from fairseq_deepnet.records import write_record
from fairseq_deepnet.tools.checkpoints.choice import Model
from fairseq_deepnet.tools.corpora.builder import folder_digests
from fairseq_deepnet.tools.corpora.folder import DataFolder
from fairseq_deepnet.tools.export import record
from fairseq_deepnet.tools.export.ctranslate2_spec import StockConverter
from fairseq_deepnet.tools.export.layout import RECORD
from fairseq_deepnet.tools.export.stock import fold_model, kind_of, model_name, required_arguments
from fairseq_deepnet.tools.export.vocabulary import read_vocabularies


def request_of(model: Model, data: DataFolder, quantization: str) -> dict[str, Any]:
    """All that decides the folder."""
    digests = record.data_digests(data)
    return record.make_request(model, "ctranslate2", quantization=quantization, data=digests)


def write_folder(
    model: Model, data: DataFolder, state: dict[str, Any], request: dict[str, Any], output: Path
) -> None:
    """Write the folder so that it is there whole or not at all.

    Raises:
        ValueError: for a model that cannot be folded or that CTranslate2 cannot compute.
    """
    args = required_arguments(state)
    if kind_of(args) is not ENCODER_DECODER:
        raise ValueError(
            f"a {model_name(args)} translates nothing, and is not exported to CTranslate2;"
            " use --to fairseq"
        )
    folded, stock = fold_model(state)
    vocabularies, tokens = read_vocabularies(model.path, data)
    converter = StockConverter(folded.weights, stock, vocabularies)
    part = record.part_of(output)
    try:
        converter.convert(str(part), quantization=request["quantization"])
        subwords = record.subword_files(data)
        for name in sorted(set(subwords.values())):
            shutil.copy(data.path / name, part / name)
        facts = record.describe(model, state, request) | {
            "quantization": request["quantization"],
            "source": None if tokens else data.languages[0],
            "target": None if tokens else data.languages[1],
            "languages": data.languages,
            "language_tokens": dataclasses.asdict(tokens) if tokens else None,
            "subwords": {
                "kind": "moses" if data.is_moses else "sentencepiece",
                "models": subwords,
            },
            "lowercase": data.is_lowercase,
            "max_positions": [stock.max_source_positions, stock.max_target_positions],
        }
        write_record(part / RECORD, facts | {"files": folder_digests(part)})
        record.put_in_place(part, output)
    finally:
        record.remove(part)
