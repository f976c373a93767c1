"""Lines, words and characters of text."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_deepnet.tools.corpora.text import count_words, find_side, normalise, read_lines


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "text"
    odd = ["a\u2028b", "c\x85d", "e\x0bf\x0cg", "h\ri", "j\x1ck", "\ufefftwo"]
    path.write_bytes("".join(f"{line}\r\n" for line in ["\ufeffone", *odd]).encode() + b"three")
    assert list(read_lines(path)) == ["one", *odd, "three"]


def test_a_side_is_plain_or_gzipped_but_not_both(tmp_path: Path) -> None:
    prefix = tmp_path / "train"
    packed = tmp_path / "train.eo.gz"
    packed.touch()
    assert find_side(prefix, "eo") == packed
    (tmp_path / "train.eo").touch()
    with pytest.raises(ValueError, match=r"both .* exist"):
        find_side(prefix, "eo")


def test_normalisation_composes_letters_and_leaves_single_spaces() -> None:
    assert normalise(" cafe\u0301\t\u00a0au\u2028lait\x07 \ufeff") == "café au lait"
    assert normalise("a\u00adb") == "ab"
    assert normalise("u\x00\u0308ber") == "über"
    assert normalise("m² ½ ﬁ Ａ…") == "m² ½ ﬁ Ａ…"  # NFC: letters that mean more stay


@pytest.mark.parametrize(
    ("line", "words"),
    [("", 0), ("Sie ist da.", 3), ("我喜欢猫", 4), ("GPT 是模型", 4), ("ฉันรักแมว", 3), ("𠮷野", 2)],
)
def test_words_are_counted_even_in_scripts_without_spaces(line: str, words: int) -> None:
    assert count_words(line) == words
