"""WMT 2017 English-German: from the published archives to raw parallel text.

Training text is europarl-v7, commoncrawl and news-commentary-v12, one after the other, as in the
paper's and fairseq's "WMT'17" (about 4.59 million pairs); newstest2013 is for validation,
newstest2014 and newstest2017 are test sets.
"""

from __future__ import annotations

from typing import Final

from fairseq_deepnet.tools.corpora.published import Corpus, Part, plain_text
from fairseq_deepnet.tools.corpora.sgm import read_pair


def _text(name: str, archive: str, stem: str, lines: int) -> Part:
    files = (f"{stem}.de-en.en", f"{stem}.de-en.de")
    return Part(name, "train", f"training-parallel-{archive}.tgz", files, plain_text, lines)


def _set(name: str, split: str, archive: str, stem: str, lines: int) -> Part:
    files = (f"{stem}-src.en.sgm", f"{stem}-ref.de.sgm")
    return Part(name, split, archive, files, read_pair, lines)


WMT17: Final = Corpus(
    __doc__,
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
add_arguments, run = WMT17.add_arguments, WMT17.run
