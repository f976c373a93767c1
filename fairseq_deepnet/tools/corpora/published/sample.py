"""The sample corpus: German-English sentences that a grammar has made, in data/sample."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Final

from fairseq_deepnet.files import RESOURCES, whole_folder, write_json
from fairseq_deepnet.tools.corpora.archive import opened
from fairseq_deepnet.tools.corpora.builder import Row, rows_of
from fairseq_deepnet.tools.corpora.extract import MARK, refuse_strange
from fairseq_deepnet.tools.corpora.published import Corpus, DataKind, Fetch

ARCHIVE: Final = RESOURCES / "data" / "sample" / "sample.tar.bz2"
LINES: Final = {"TRAIN_LINES": 25_000, "VALID_LINES": 500, "TEST_LINES": 500}


def check(value: SimpleNamespace) -> None:
    """Refuse more lines than there are."""
    for name, there in LINES.items():
        wanted = getattr(value, name.lower())
        if wanted > there:
            raise ValueError(f"{name} is '{wanted}'; it must be a number from 1 to {there}")


def rows(value: SimpleNamespace, fetch: Fetch) -> list[Row]:
    """Return the rows of the first lines of every split, which are written to OUT.raw."""
    folder = Path(f"{value.out}.raw")
    refuse_strange(folder)
    with whole_folder(folder) as part, opened(ARCHIVE) as files:
        for member, content in files:
            name = Path(member.name).name
            wanted = getattr(value, f"{name.partition('.')[0]}_lines")
            (part / name).write_bytes(b"".join(islice(content, wanted)))
        write_json(part / MARK, {"from": str(ARCHIVE)})
    return rows_of(("de", "en"), f"{folder}/train", f"{folder}/valid", f"{folder}/test")


CORPORA: Final = {
    "sample": Corpus(
        "German-English sentences of a grammar, part of this project",
        files=(),
        kinds={
            "sample": DataKind(
                "the sample corpus of this project",
                folder="pair",
                rows=rows,
                out="sample.de-en",
                defaults={"SRC": "de", "TGT": "en", "VOCAB_SIZE": 2000, **LINES},
                options=" ".join(LINES),
                check=check,
                extracts=True,
            )
        },
    )
}
