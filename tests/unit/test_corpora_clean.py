"""Reading, checking and cleaning parallel text."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet.tools.corpora.clean import Limits, clean_split, clean_train, count_words
from fairseq_deepnet.tools.corpora.text import find_side, is_blank, normalise, read_lines

PAIR = ("eo", "ia")


def clean_corpus(
    prefixes: dict[str, str], out: Path, limits: Limits, workers: int = 1
) -> dict[str, dict[str, Any]]:
    """Clean or check every split into the folder OUT."""
    out.mkdir()
    return {
        split: clean_split(split, prefix, PAIR, out, limits, workers)
        for split, prefix in prefixes.items()
    }


def write_corpus(folder: Path, source: list[str], target: list[str], split: str = "train") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for language, lines in zip(PAIR, (source, target), strict=True):
        text = "".join(f"{line}\n" for line in lines)
        (folder / f"{split}.{language}").write_text(text, encoding="utf-8", newline="")
    return str(folder / split)


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "text"
    odd = ["a\u2028b", "c\x85d", "e\x0bf\x0cg", "h\ri", "j\x1ck"]
    path.write_bytes("".join(f"{line}\n" for line in odd).encode())
    assert list(read_lines(path)) == odd
    assert path.read_bytes().count(b"\n") == len(odd)


def test_byte_order_mark_and_windows_line_ends_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\xef\xbb\xbftwo\r\nthree")
    assert list(read_lines(path)) == ["one", "\ufefftwo", "three"]


def test_gzipped_text_reads_like_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress("ĉu\nne\n".encode()))
    assert list(read_lines(path)) == ["ĉu", "ne"]


def test_invalid_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"good\nGr\xfc\xdfe\n")
    with pytest.raises(ValueError, match=r"text, line 2: not valid UTF-8 .*iconv"):
        list(read_lines(path))


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: b"no gzip at all"])
def test_broken_gzip_is_refused(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "text.gz"
    data = gzip.compress(b"".join(b"line %d\n" % number for number in range(1000)))
    path.write_bytes(damage(data))  # type: ignore[operator]
    with pytest.raises(ValueError, match="not a complete gzip file"):
        list(read_lines(path))


def test_a_side_is_found_plain_or_gzipped_but_not_both(tmp_path: Path) -> None:
    prefix = tmp_path / "train"
    with pytest.raises(FileNotFoundError, match=r"no eo side of .*: neither .*train\.eo nor"):
        find_side(prefix, "eo")
    packed = tmp_path / "train.eo.gz"
    packed.touch()
    assert find_side(prefix, "eo") == packed
    (tmp_path / "train.eo").touch()
    with pytest.raises(ValueError, match=r"both .* exist"):
        find_side(prefix, "eo")


def test_normalising_composes_letters_and_leaves_single_spaces() -> None:
    assert normalise(" cafe\u0301\t\u00a0au\u2028lait\x07 \ufeff") == "café au lait"
    assert normalise("a\u00adb") == "ab"
    assert normalise("u\x00\u0308ber") == "über"
    assert normalise("m² ½ ﬁ Ａ…") == "m² ½ ﬁ Ａ…"  # NFC: letters that mean more stay


@pytest.mark.parametrize("line", ["", " \t\u3000", "\x00\x01", "\u200b\u200e", "\u2581", "\ufffd"])
def test_a_line_that_shows_nothing_is_blank(line: str) -> None:
    assert is_blank(line)
    assert not is_blank(line + "x")


@pytest.mark.parametrize(
    ("line", "words"),
    [("", 0), ("Sie ist da.", 3), ("我喜欢猫", 4), ("GPT 是模型", 4), ("ฉันรักแมว", 3), ("𠮷野", 2)],
)
def test_words_are_counted_also_where_no_spaces_are_written(line: str, words: int) -> None:
    assert count_words(line) == words


def test_training_pairs_are_dropped_for_stated_reasons_and_others_kept() -> None:
    pairs = [
        ("unu du", "un duo"),
        ("", "un"),
        ("unu", " \t"),
        ("unu", "a b c d e f"),
        ("x " * 20, "y " * 20),
    ]
    dropped: Counter[str] = Counter()
    limits = Limits(max_words=10, max_ratio=5)
    assert list(clean_train(iter(pairs), limits, dropped)) == [("unu du", "un duo")]
    assert dropped == {"empty": 2, "length ratio": 1, "too long": 1}


@pytest.mark.parametrize("workers", [1, 2])
def test_only_a_repeated_pair_is_a_duplicate(tmp_path: Path, workers: int) -> None:
    """A source with two targets, a target with two sources, and words on either side of the gap."""
    source = ["unu", "unu", "du", "unu du", "unu", "unu"]
    target = ["un", "uno", "un", "uno", "du uno", "uno"]
    prefix = write_corpus(tmp_path, source, target)
    limits = Limits(drop_duplicates=True)
    report = clean_corpus({"train": prefix}, tmp_path / "out", limits, workers)
    assert report["train"] == {"read": 6, "kept": 5, "dropped": {"duplicate": 1}}
    assert list(read_lines(tmp_path / "out" / "train.eo")) == source[:5]
    assert list(read_lines(tmp_path / "out" / "train.ia")) == target[:5]


def test_duplicates_stay_unless_asked(tmp_path: Path) -> None:
    prefix = write_corpus(tmp_path, ["unu"] * 3, ["un"] * 3)
    assert clean_corpus({"train": prefix}, tmp_path / "out", Limits())["train"]["kept"] == 3


@pytest.mark.parametrize(
    "wrong", [{"min_words": 0}, {"max_words": 0}, {"max_ratio": 0.5}, {"max_ratio": float("nan")}]
)
def test_impossible_limits_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must be at least|is below"):
        Limits(**wrong)  # type: ignore[arg-type]


def test_valid_and_test_lines_are_never_changed(tmp_path: Path) -> None:
    odd = ["  two  spaces ", "cafe\u0301", "a\u2028b", "x", "y " * 300]
    other = ["a"] * len(odd)
    prefixes = {
        "train": write_corpus(tmp_path, odd, other),
        "valid": write_corpus(tmp_path, odd, other, "valid"),
    }
    report = clean_corpus(prefixes, tmp_path / "out", Limits())
    assert list(read_lines(tmp_path / "out" / "valid.eo")) == odd
    assert list(read_lines(tmp_path / "out" / "train.eo")) == ["two spaces", "café", "a b", "x"]
    assert report["train"] == {"read": 5, "kept": 4, "dropped": {"too long": 1}}


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (["a", "b"], ["a"], r"differ in length: .*valid\.eo has 2 lines, .*valid\.ia has 1"),
        (["a"], ["a", "b", "c"], r"differ in length: .*valid\.eo has 1 lines, .*valid\.ia has 3"),
        ([], [], r"valid\.eo and .*valid\.ia are empty"),
        (["a", ""], ["a", "b"], r"valid\.eo, line 2: empty"),
        (["a", "b"], ["a", " "], r"valid\.ia, line 2: empty"),
        (["a\rb"], ["a"], r"valid\.eo, line 1: a carriage return"),
    ],
)
def test_bad_text_is_refused(
    tmp_path: Path, source: list[str], target: list[str], message: str
) -> None:
    raw = tmp_path / "raw"
    prefixes = {
        "train": write_corpus(raw, ["a"], ["b"]),
        "valid": write_corpus(raw, source, target, "valid"),
    }
    with pytest.raises(ValueError, match=message) as caught:
        clean_corpus(prefixes, tmp_path / "out", Limits())
    assert "\n" not in str(caught.value)


def test_training_text_of_which_nothing_stays_is_an_error(tmp_path: Path) -> None:
    prefix = write_corpus(tmp_path, ["", "a"], ["b", "a b c d e f g"])
    with pytest.raises(ValueError, match=r"no pair .* is left \(1 empty, 1 length ratio\)"):
        clean_corpus({"train": prefix}, tmp_path / "out", Limits())
