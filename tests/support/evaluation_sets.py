"""Small versions of published test sets, in the layout of their archives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.corpus import write_lines

SENTENCES = {
    "de": ["Zwei Hunde spielen im Schnee.", "Ein Mann liest ein Buch.", "Das ist \u2028 alles."],
    "en": ["Two dogs play in the snow.", "A man reads a book.", "That is all."],
    "fr": ["Deux chiens jouent dans la neige.", "Un homme lit un livre.", "C'est tout."],
    "zh": ["两只狗在雪中玩耍。", "一个男人在看书。", "就这些。"],
}
FLORES = {"de": "deu", "en": "eng", "fr": "fra", "zh": "zho_simpl"}


def flores101(folder: Path, sentences: Mapping[str, Sequence[str]] = SENTENCES) -> Path:
    """Write flores101_dataset/devtest/deu.devtest and so on, with a different dev set."""
    top = folder / "flores101_dataset"
    for code, lines in sentences.items():
        write_lines(top / "devtest" / f"{FLORES[code]}.devtest", lines)
        write_lines(top / "dev" / f"{FLORES[code]}.dev", ["not this"])
    return top


def ted(folder: Path) -> Path:
    """Write all_talks_test.tsv, tokenised and with marks of missing text, as published."""
    rows = [
        ["talk_name", "en", "es", "fr", "zh-cn", "de"],
        [
            "t1",
            "Thank you , Chris .",
            "__NULL__",
            "Merci , Chris .",
            "谢谢 你 。",
            "Danke ,\r Chris .",
        ],
        ["t1", '" It &apos;s good , "', "x", "_ _ NULL _ _", "很 好", "Das ist gut ."],
        ["t2", "No .", "x", "Non .", "__NULL__", ""],
    ]
    write_lines(folder / "all_talks_test.tsv", ["\t".join(row) for row in rows])
    return folder
