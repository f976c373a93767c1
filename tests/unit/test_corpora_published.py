"""Rows of text from published corpora, whose archives have the published layout."""

from __future__ import annotations

import io
import re
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.tools.corpora import preprocess, published
from fairseq_deepnet.tools.corpora.build import Row
from fairseq_deepnet.tools.corpora.published import CORPORA, FOLDERS, OPUS100
from tests.support.archives import PAIRS, pack, small_iwslt, small_wmt
from tests.support.shell import Refused

DEV = [
    f"dev/newstest{name}.sgm"
    for name in ("2013-src.en", "2013-ref.de", "2014-deen-src.en", "2014-deen-ref.de")
]


def rows_of(name: str, raw: Path, place: Path, languages: str | None = None) -> list[Row]:
    entry = FOLDERS[name]
    recipe = entry.recipe if languages is None else replace(entry.recipe, languages=languages)
    return entry.rows(recipe, raw, place)


def lines_of(row: Row, language: str) -> list[str]:
    return Path(f"{row.prefix}.{language}").read_text(encoding="utf-8").split("\n")[:-1]


def wmt(folder: Path) -> Path:
    for name, content in small_wmt().items():
        (folder / name).write_bytes(content)
    return folder


def test_iwslt14_has_talks_and_five_sets(tmp_path: Path) -> None:
    (tmp_path / "de-en.tgz").write_bytes(pack(small_iwslt()))
    train, test = rows_of("iwslt14", tmp_path, tmp_path / "place")
    talk = [pair[0] for pair in PAIRS]
    # title, description and sentences, unchanged
    assert lines_of(train, "de")[:7] == [talk[0], f"TED Talk: {talk[-1]}", *talk]
    assert lines_of(test, "de") == talk * 5
    assert lines_of(test, "en")[3] == "We have learnt 3 < 5."


def test_wmt17_has_three_texts_and_three_sets(tmp_path: Path) -> None:
    place = tmp_path / "place"
    rows = rows_of("wmt17", wmt(tmp_path), place)
    assert [row.split for row in rows] == ["train", "valid", "test", "test1"]
    assert lines_of(rows[0], "de")[200:203] == ["eins\u2028zwei\x85drei vier", "", "fünf sechs"]
    assert [len(lines_of(row, "en")) for row in rows] == [203 + 200 + 5, 3, 4, 5]
    tokenized = FOLDERS["wmt17-tokenized"]
    held_out = tokenized.rows(tokenized.recipe, tmp_path, place)
    assert [row.split for row in held_out] == ["train", "test", "test1"]
    assert tokenized.rows(replace(tokenized.recipe, hold_out=0), tmp_path, place) == rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no .*dev.tgz"),
        (b"no archive", "is not a complete archive"),
        (small_wmt()["dev.tgz"][:-30], "is not a complete archive"),
        (small_wmt()["dev.tgz"][:-8] + bytes(8), "is not a complete archive"),  # wrong checksum
        (pack({"dev/README": "x"}), "has no dev/newstest2013-ref.de.sgm"),
        (pack(dict.fromkeys(DEV, "<seg id=1>x")), "no complete set of <seg>"),
    ],
)
def test_a_damaged_archive_is_refused_and_leaves_nothing(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    path = wmt(tmp_path) / "dev.tgz"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((ValueError, OSError), match=message):
        rows_of("wmt17", tmp_path, tmp_path / "place")
    assert not (tmp_path / "place").exists()


def test_sets_of_different_segments_are_refused(tmp_path: Path) -> None:
    files = small_iwslt()
    name = "de-en/IWSLT14.TED.tst2011.de-en.en.xml"
    files[name] = files[name].replace('<seg id="2">', '<seg id="9">', 1)
    (tmp_path / "de-en.tgz").write_bytes(pack(files))
    with pytest.raises(ValueError, match="different segments"):
        rows_of("iwslt14", tmp_path, tmp_path / "place")


def opus100_files(kind: str, pair: str, *splits: str) -> dict[str, str]:
    """Return a line for each side of a pair's splits, by name in the archive."""
    top = f"opus-100-corpus/v1.0/{kind}/{pair}/opus.{pair}"
    names = [f"{top}-{split}.{language}" for split in splits for language in pair.split("-")]
    return {name: f"{name}\n" for name in names}


@pytest.mark.parametrize("packed", [True, False])
def test_opus100_is_read_from_archives_or_a_folder(
    packed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = opus100_files("supervised", "cs-en", "train")
    for pair in ("de-en", "en-fr"):
        files |= opus100_files("supervised", pair, "train", "dev", "test")
    files |= opus100_files("zero-shot", "de-fr", "dev", "test")  # dev is not read
    raw = tmp_path / "raw"
    raw.mkdir()
    if packed:
        (raw / "opus-100-corpus-v1.0.tar.gz").write_bytes(pack(files))
    else:
        with tarfile.open(fileobj=io.BytesIO(pack(files)), encoding="utf-8") as archive:
            archive.extractall(raw, filter="data")
    rows = rows_of("opus100", raw, tmp_path / "place")
    assert [(row.split, row.pair) for row in rows] == [
        *(("train", pair) for pair in ("cs-en", "de-en", "en-fr")),
        *(("valid", pair) for pair in ("de-en", "en-fr")),
        *(("test", pair) for pair in ("de-en", "de-fr", "en-fr")),
    ]
    assert "raw has no training text of af, am, " in capsys.readouterr().err
    (line,) = lines_of(rows[-2], "fr")
    assert line == "opus-100-corpus/v1.0/zero-shot/de-fr/opus.de-fr-test.fr"
    assert {row.pair for row in rows_of("opus100", raw, tmp_path / "some", "de")} == {"de-en"}
    with pytest.raises(ValueError, match="no training text of nl"):
        rows_of("opus100", raw, tmp_path / "none", "nl")
    if not packed:
        shutil.copytree(raw / "opus-100-corpus", raw / "copy")
        with pytest.raises(ValueError, match="more than one copy of"):
            rows_of("opus100", raw, tmp_path / "none")


def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    names = [f"../../x/supervised/de-en/opus.de-en-train.{language}" for language in ("de", "en")]
    (tmp_path / "raw").mkdir()
    bad = pack(dict.fromkeys(names, "y\n"))
    (tmp_path / "raw" / "opus-100-corpus-v1.0.tar.gz").write_bytes(bad)
    rows_of("opus100", tmp_path / "raw", tmp_path / "a" / "b" / "place")
    assert {path.name for path in tmp_path.iterdir()} == {"raw", "a"}


def test_opus100_has_99_languages_in_99_archives_and_one_of_zero_shot_pairs() -> None:
    assert len(OPUS100) == 99
    assert len(CORPORA["opus100"].parts) == 100
    names = [file.name for file in CORPORA["opus100"].select(["de", "zh"])]
    assert names == [f"opus-100-corpus-{x}-v1.0.tar.gz" for x in ("de-en", "en-zh", "zeroshot")]
    with pytest.raises(ValueError, match="no language xx"):
        CORPORA["opus100"].select(["xx"])
    with pytest.raises(ValueError, match="only one archive"):
        CORPORA["wmt17"].select(["de"])


def test_multi30k_has_two_names_and_every_pair_is_tested(tmp_path: Path) -> None:
    for name in ("train.de", "val.de", "test.de"):
        (tmp_path / name).touch()
    rows = rows_of("multi30k-multilingual", tmp_path, tmp_path, "de en fr")
    assert [(row.split, row.pair) for row in rows] == [
        *((split, "de-en") for split in ("train", "valid", "test")),
        ("test", "de-fr"),
        *((split, "en-fr") for split in ("train", "valid", "test")),
    ]
    prefixes = [str(tmp_path / name) for name in ("train", "val", "test")]
    assert [row.prefix for row in rows[:3]] == prefixes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["iwslt14", "--src", "fr"], "languages 'fr en': choose different ones of de en"),
        (["multi30k-multilingual", "--languages", "de fr"], "English and at least one other"),
        (["multi30k", "--merges", "5"], r"--merges \(MERGES\) has no effect on multi30k"),
        (["multi30k", "--train", "x"], r"--train \(TRAIN\) has no effect"),
        (["multi30k-multilingual", "--temperature", "0.001"], "is 0.001; the minimum is 1"),
        (["moses", "--src", "de", "--tgt", "en", "--hold-out", "-3"], "is -3; the minimum is 0"),
        (["pair", "--src", "de", "--tgt", "de"], "they must differ"),
        (["pair", "--src", "de", "--tgt", "en"], "are needed; see --help"),
        (["language", "--train", "x"], "LANG_CODE .* is not set"),
        (["multi30k", "--raw", "/nowhere"], "no archive or folder /nowhere: set RAW"),
        (["sample", "--src", "en", "--tgt", "it"], "choose different ones of de en"),
    ],
)
def test_bad_usage_is_refused_in_one_line(
    words: list[str], message: str, tmp_path: Path, refused: Refused
) -> None:
    error = refused("preprocess", *words, "--out", tmp_path / "out")
    assert re.search(message, error), error


def test_a_bad_line_of_a_table_is_refused_with_its_number(tmp_path: Path) -> None:
    table, good = tmp_path / "table", "# pairs\ntrain\tfr\tde\ta/train\n"
    table.write_text(good, encoding="utf-8")
    assert preprocess.read_table(table) == [Row("train", ("de", "fr"), "a/train")]
    for bad in ("train\tde\tfr\tb", "test\tde\tde\tb", "test\tde\tb", "dev\tde\tfr\tb"):
        table.write_text(f"{good}{bad}\n", encoding="utf-8")
        with pytest.raises(ValueError, match="table, line 3: "):
            preprocess.read_table(table)
    table.write_text(f"{good}test\tde\tnl\tb\n", encoding="utf-8")
    with pytest.raises(ValueError, match="de-nl: no training text in nl"):
        preprocess.read_table(table)
    table.write_text("# pairs\n", encoding="utf-8")
    with pytest.raises(ValueError, match="table lists no text"):
        preprocess.read_table(table)


def test_a_complete_folder_of_a_published_corpus_needs_neither_network_nor_archives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, raw = str(tmp_path / "out"), tmp_path / "raw"
    raw.mkdir()
    words = ["preprocess", "iwslt14", "--merges", "30", "--out", out]
    for name in ("de-en.tgz", "notes.txt"):  # a further file in RAW changes nothing
        (raw / name).write_bytes(pack(small_iwslt()))
        assert cli.main([*words, "--raw", str(raw)]) == 0
    (raw / "de-en.tgz").unlink()
    monkeypatch.setattr(preprocess, "fetch", None)
    monkeypatch.setattr(published, "_unpack", None)
    capsys.readouterr()
    assert cli.main(words) == 0
    assert "is complete: nothing to do" in capsys.readouterr().err
    assert cli.main([*words[:3], "31", *words[4:]]) == 2
