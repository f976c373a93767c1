"""Test sets of many directions, and M2M-100's vocabulary: files alone, for `deepnet download`."""

from __future__ import annotations

from typing import Final

from fairseq_deepnet.tools.corpora.published import Corpus, File, file_at

_FAIR: Final = "https://dl.fbaipublicfiles.com"
_M2M100: Final = (
    *("spm.128k.model", "data_dict.128k.txt", "model_dict.128k.txt"),
    "language_pairs_small_models.txt",
)

CORPORA: Final = {
    "flores101": Corpus(
        "Flores-101: dev and devtest in 101 languages, and the sentencepiece model of spBLEU",
        (
            file_at([f"{_FAIR}/flores101/dataset"], "flores101_dataset.tar.gz"),
            file_at([f"{_FAIR}/fairseq/models/flores"], "sacrebleu_tokenizer_spm.model"),
        ),
    ),
    "ted": Corpus(
        "Multilingual TED talks in 60 languages (352 MB)",
        (
            File(
                "ted_talks.tar.gz",
                ("http://phontron.com/data/ted_talks.tar.gz",),
                size=352222045,
                sha256="03457b9ebc6d60839f1a48c5a03c940266aff78b81fcda4c6d9e2a5a7fb670ae",
                published="TensorFlow Datasets, url_checksums",
            ),
        ),
    ),
    "m2m100": Corpus(
        "M2M-100's sentencepiece model, dictionaries and language list (no weights)",
        tuple(file_at([f"{_FAIR}/m2m_100"], name) for name in _M2M100),
    ),
}
