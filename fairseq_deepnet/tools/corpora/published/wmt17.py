"""WMT 2017 English-German.

Training text is europarl-v7, commoncrawl and news-commentary-v12, one after the other, as in the
paper's and fairseq's "WMT'17" (about 4.59 million pairs); newstest2013 is for validation,
newstest2014 and newstest2017 are test sets.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Final

from fairseq_deepnet.tools.corpora.builder import Row, rows_of
from fairseq_deepnet.tools.corpora.extract import (
    Archives,
    Part,
    plain_text,
    read_pair,
    require_pair,
)
from fairseq_deepnet.tools.corpora.published import Corpus, DataKind, Fetch, file_at


def _text(name: str, archive: str, stem: str, lines: int) -> Part:
    files = (f"{stem}.de-en.en", f"{stem}.de-en.de")
    return Part(name, "train", f"training-parallel-{archive}.tgz", files, plain_text, lines)


def _set(name: str, split: str, archive: str, stem: str, lines: int) -> Part:
    files = (f"{stem}-src.en.sgm", f"{stem}-ref.de.sgm")
    return Part(name, split, archive, files, read_pair, lines)


WMT17: Final = Archives(
    ("en", "de"),
    (
        # in the order of fairseq's recipe
        _text("europarl-v7", "europarl-v7", "training/europarl-v7", 1_920_209),
        _text("commoncrawl", "commoncrawl", "commoncrawl", 2_399_123),
        _text("news-commentary-v12", "nc-v12", "training/news-commentary-v12", 270_769),
        _set("newstest2013", "valid", "dev.tgz", "dev/newstest2013", 3000),
        _set("newstest2014", "test", "dev.tgz", "dev/newstest2014-deen", 3003),
        _set("newstest2017", "test1", "test.tgz", "test/newstest2017-ende", 3004),
    ),
)


def check(value: SimpleNamespace) -> None:
    """Refuse another direction than English to German."""
    require_pair(value, ("en de",), "this recipe is en to de")


def rows(value: SimpleNamespace, fetch: Fetch) -> list[Row]:
    """Return the rows; test1 is newstest2017, valid is newstest2013 unless pairs are held out."""
    text = WMT17.raw_text(value, fetch)
    valid = None if getattr(value, "hold_out", 0) else f"{text}/valid"
    tests = f"{text}/test,{text}/test1"
    return rows_of((value.src, value.tgt), f"{text}/train", valid, tests)


_TFDS: Final = "TensorFlow Datasets, url_checksums"
_WMT13: Final = ("https://www.statmt.org/wmt13", "http://www.statmt.org/wmt13")
_WMT17: Final = tuple(
    f"{scheme}://data.statmt.org/wmt17/translation-task" for scheme in ("https", "http")
)
CORPORA: Final = {
    "wmt17": Corpus(
        "WMT 2017 English-German: Europarl, Common Crawl, News Commentary, test sets (1.8 GB)",
        (
            file_at(
                _WMT13,
                "training-parallel-europarl-v7.tgz",
                size=657632379,
                sha256="0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
                published=_TFDS,
            ),
            file_at(
                _WMT13,
                "training-parallel-commoncrawl.tgz",
                size=918311367,
                sha256="c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
                published=_TFDS,
            ),
            file_at(
                _WMT17,
                "training-parallel-nc-v12.tgz",
                size=168591139,
                sha256="2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2",
                published=_TFDS,
            ),
            file_at(_WMT17[:1], "dev.tgz"),
            file_at(
                _WMT17,
                "test.tgz",
                md5="86a1724c276004aa25455ae2a04cef26",
                published="sacreBLEU, dataset/__init__.py",
            ),
        ),
        kinds={
            "wmt17": DataKind(
                "WMT 2017 English-German, raw cased text",
                folder="pair",
                rows=rows,
                out="wmt17.en-de",
                defaults={"SRC": "en", "TGT": "de", "VOCAB_SIZE": 32_000},
                check=check,
                extracts=True,
                has_valid=True,
            ),
            "wmt17-tokenized": DataKind(
                "WMT 2017 English-German, as fairseq's recipe makes it",
                folder="moses",
                rows=rows,
                out="wmt17.tokenized.en-de",
                defaults={
                    **{"SRC": "en", "TGT": "de", "HOLD_OUT": 100, "MERGES": 40_000},
                    **{"MAX_TOKENS": 250, "CLEAN_ON": "subwords"},
                    **dict.fromkeys(("JOINED", "AGGRESSIVE", "PUNCTUATION", "APOSTROPHES"), True),
                },
                check=check,
                extracts=True,
                has_valid=True,
            ),
        },
    )
}
