"""IWSLT 2014 German-English: TED talks.

The archive holds the training talks (`train.tags.de-en.{de,en}`: one sentence a line among lines of
tags) and the dev and test sets in XML. As in fairseq's recipe, titles and descriptions of talks are
training text, and test is dev2010 + TEDX.dev2012 + tst2010 + tst2011 + tst2012.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Final

from fairseq_deepnet.tools.corpora.builder import Row, rows_of
from fairseq_deepnet.tools.corpora.extract import Archives, Part, Sides, read_pair, require_pair
from fairseq_deepnet.tools.corpora.published import Corpus, DataKind, Fetch, file_at
from fairseq_deepnet.tools.corpora.text import read_lines

# Metadata, never translated. fairseq's recipe names the first three, which its 2014 files have;
# files of later years have the others too.
_DROPPED = re.compile(r"<(?:url|talkid|keywords|speaker|reviewer|translator|doc|/doc)\b", re.I)
_KEPT_TAGS = re.compile(r"</?(?:title|description)>")


def read_train_tags(path: Path) -> Iterator[str]:
    """Yield the sentences of a train.tags file: tag lines dropped, titles and descriptions kept.

    Every other line is a sentence, an empty one too: the sides pair line by line.
    """
    for line in read_lines(path):
        if not _DROPPED.search(line):
            yield _KEPT_TAGS.sub("", line).strip()


def _talks(source: Path, target: Path) -> Sides:
    return read_train_tags(source), read_train_tags(target)


_ARCHIVE = "de-en.tgz"
_TRAIN, _SET = "de-en/train.tags.de-en", "de-en/IWSLT14.{}.de-en"
# In the order of fairseq's recipe. Counted in the published sets: 6,750 in all, as it gives.
_SETS = {
    "TED.dev2010": 887,
    "TEDX.dev2012": 1165,
    "TED.tst2010": 1565,
    "TED.tst2011": 1433,
    "TED.tst2012": 1700,
}
IWSLT14: Final = Archives(
    ("de", "en"),
    (
        Part("train", "train", _ARCHIVE, (f"{_TRAIN}.de", f"{_TRAIN}.en"), _talks),
        *(
            Part(name, "test", _ARCHIVE, (f"{stem}.de.xml", f"{stem}.en.xml"), read_pair, lines)
            for name, lines in _SETS.items()
            for stem in [_SET.format(name)]
        ),
    ),
)


def check(value: SimpleNamespace) -> None:
    """Refuse other languages than German and English."""
    require_pair(value, ("de en", "en de"), "they must be de and en")


def tokenized(value: SimpleNamespace, fetch: Fetch) -> list[Row]:
    """Return the rows without valid, which is held out of the tokens."""
    text = IWSLT14.raw_text(value, fetch)
    return rows_of((value.src, value.tgt), f"{text}/train", None, f"{text}/test")


def raw(value: SimpleNamespace, fetch: Fetch) -> list[Row]:
    """Return the rows; valid is held out of the raw pairs."""
    text = IWSLT14.raw_text(value, fetch, value.hold_out)
    return rows_of((value.src, value.tgt), f"{text}/train", f"{text}/valid", f"{text}/test")


_PLACES: Final = (
    "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14",
    "https://wit3.fbk.eu/archive/2014-01/texts/de/en",
)
_PAIR: Final = {"SRC": "de", "TGT": "en", "HOLD_OUT": 23}
CORPORA: Final = {
    "iwslt14": Corpus(
        "IWSLT 2014 German-English: TED talks (19 MB)",
        # wit3's file had 19,982,877 bytes; whether fairseq's copy has as many is not known.
        (file_at(_PLACES, _ARCHIVE),),
        kinds={
            "iwslt14": DataKind(
                "IWSLT 2014 German-English, as fairseq's recipe makes it",
                folder="moses",
                rows=tokenized,
                out="iwslt14.tokenized.{src}-{tgt}",
                defaults={**_PAIR, "LOWERCASE": True, "APOSTROPHES": True},
                check=check,
                extracts=True,
            ),
            "iwslt14-sentencepiece": DataKind(
                "IWSLT 2014 German-English, raw cased text",
                folder="pair",
                rows=raw,
                out="iwslt14.sentencepiece.{src}-{tgt}",
                defaults={**_PAIR, "VOCAB_SIZE": 10_000},
                options="RAW DOWNLOADS JOBS HOLD_OUT",
                check=check,
                extracts=True,
            ),
        },
    )
}
