"""IWSLT 2014 German-English: from the published archive to raw parallel text.

The archive holds the training talks (`train.tags.de-en.{de,en}`: one sentence a line among lines of
tags) and the dev and test sets in XML. As in fairseq's recipe, titles and descriptions of talks are
training text, and test is dev2010 + TEDX.dev2012 + tst2010 + tst2011 + tst2012.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fairseq_deepnet.tools.corpora.published import Corpus, Part, Sides
from fairseq_deepnet.tools.corpora.sgm import read_pair
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

IWSLT14: Final = Corpus(
    __doc__,
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
add_arguments, run = IWSLT14.add_arguments, IWSLT14.run
