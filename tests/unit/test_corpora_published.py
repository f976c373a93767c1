"""Readers of IWSLT's and WMT's files, on real talks and on archives of the true layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairseq_deepnet.tools.corpora import archive
from fairseq_deepnet.tools.corpora.extract import Archives, read_pair, read_segments
from fairseq_deepnet.tools.corpora.published.iwslt14 import IWSLT14, read_train_tags
from fairseq_deepnet.tools.corpora.published.wmt17 import WMT17
from tests.support.archives import (
    PAIRS,
    REAL_TALKS,
    TEST_SETS,
    pack,
    real_iwslt,
    small_iwslt,
    small_wmt,
    train_tags,
)

needs_talks = pytest.mark.skipif(
    not REAL_TALKS.is_dir(), reason="no real talks in ../shared/data/iwslt_xml"
)


def published_lines(corpus: Archives, *splits: str) -> dict[str, int]:
    return {
        part.name: part.lines
        for part in corpus.parts
        if part.lines and part.split in (splits or (part.split,))
    }


def write_set(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path


def test_text_of_segments_survives_missing_and_present_escapes(tmp_path: Path) -> None:
    path = write_set(
        tmp_path / "set.sgm",
        '<refset setid="x">\n<DOC docid="a"><title>T & <b></title>\n'
        '<SEG id="1"> R&D &amp; Q&A </SEG>'
        "\n<seg id=2>3 < 5 <b>, &lt;i&gt; &#8217; &copy &unknown; \u2028 </seg></DOC>"
        '<doc docid="b"><p>\n<seg id="1">two\r\nlines</seg></p></doc></refset>\n',
    )
    assert read_segments(path) == [
        ("a", "1", "R&D & Q&A"),
        ("a", "2", "3 < 5 <b>, <i> ’ &copy &unknown;"),
        ("b", "1", "two lines"),
    ]


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("", "there is no <seg>"),
        ("<doc docid='a'>text</doc>", "there is no <seg>"),
        ('<doc docid="a">\n<seg id="1">text', "line 2: the file ends inside segment 1"),
        ('<seg id="1">text\n<seg id="2">more</seg>', "line 2: <seg> inside segment 1"),
        ('<doc>\n<seg id="1">text</doc>', "line 2: </doc> inside segment 1"),
        ("text</seg>", "</seg> without <seg>"),
    ],
)
def test_damaged_sets_are_refused_with_their_line(tmp_path: Path, content: str, cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        read_segments(write_set(tmp_path / "set.xml", content))


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "set.xml").write_bytes('<seg id="1">größer</seg>'.encode("latin-1"))
    with pytest.raises(ValueError, match=r"set\.xml: not valid UTF-8"):
        read_segments(tmp_path / "set.xml")


@pytest.mark.parametrize(
    ("target", "cause"),
    [
        (
            '<doc docid="a"><seg id="1">x</seg><seg id="3">y</seg></doc>',
            "document a, segment 2 whe",
        ),
        (
            '<doc docid="b"><seg id="1">x</seg><seg id="2">y</seg></doc>',
            "has document b, segment 1",
        ),
        ('<doc docid="a"><seg id="1">x</seg></doc>', "has 2 segments, .* has 1"),
        ('<doc docid="a"><seg id="1">x</seg><seg id="2"> </seg></doc>', "segment 2 is empty"),
    ],
)
def test_sides_must_have_the_same_documents_and_segments(
    tmp_path: Path, target: str, cause: str
) -> None:
    content = '<doc docid="a"><seg id="1">x</seg><seg id="2">y</seg></doc>'
    source = write_set(tmp_path / "source.xml", content)
    with pytest.raises(ValueError, match=cause):
        read_pair(source, write_set(tmp_path / "target.xml", target))


@needs_talks
@pytest.mark.parametrize("name", TEST_SETS)
def test_real_sets_have_as_many_sentences_as_published(name: str) -> None:
    sides = [REAL_TALKS / f"IWSLT16.{name}.de-en.{language}.xml" for language in ("de", "en")]
    german, english = read_pair(*sides)
    assert len(german) == len(english) == published_lines(IWSLT14)[name]
    assert not any("&amp;" in line or "<seg" in line for line in german + english)


def test_published_counts_sum_to_the_recipes_test_set() -> None:
    assert sum(published_lines(IWSLT14, "test").values()) == 6750
    assert sum(published_lines(WMT17, "train").values()) == 4_590_101


def test_train_tags_keep_titles_and_descriptions_and_no_other_tag(tmp_path: Path) -> None:
    talks = [["Erste <Zeile>.", "", "Zweite & Zeile."], ["Dritte."]]
    path = write_set(tmp_path / "train.tags.de-en.de", train_tags(talks, "de"))
    assert list(read_train_tags(path)) == [
        *("Erste <Zeile>.", "TED Talk: Zweite & Zeile.", "Erste <Zeile>.", "", "Zweite & Zeile."),
        *("Dritte.", "TED Talk: Dritte.", "Dritte."),
    ]


@pytest.mark.parametrize("unpacked", [False, True])
def test_the_small_archive_becomes_train_and_test(tmp_path: Path, unpacked: bool) -> None:
    files = small_iwslt(talks=3)
    if unpacked:
        origin = tmp_path / "de-en"
        origin.mkdir()
        for name, content in files.items():
            (tmp_path / name).write_text(str(content), encoding="utf-8")
    else:
        origin = tmp_path / "de-en.tgz"
        origin.write_bytes(pack(files))
    lines = IWSLT14.extract(origin, tmp_path / "out")
    assert lines == {"train": 21} | dict.fromkeys(TEST_SETS, len(PAIRS))
    english = (tmp_path / "out" / "test.en").read_text(encoding="utf-8").split("\n")
    assert english == [pair[1] for pair in PAIRS] * 5 + [""]
    assert IWSLT14.describe(lines)[1].startswith("warning: TED.dev2010 has 5 pairs, the published")

    # what is there is not read again, unless the archive is another one
    before = (tmp_path / "out" / "train.de").stat().st_ino
    assert IWSLT14.extract(origin, tmp_path / "out") == lines
    assert (tmp_path / "out" / "train.de").stat().st_ino == before
    IWSLT14.extract(origin, tmp_path / "out", hold_out=5)
    assert len((tmp_path / "out" / "valid.de").read_text(encoding="utf-8").split("\n")) == 4 + 1
    assert len((tmp_path / "out" / "train.de").read_text(encoding="utf-8").split("\n")) == 17 + 1


@needs_talks
def test_train_tags_of_real_talks_pair_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "de-en.tgz").write_bytes(pack(real_iwslt()))
    lines = IWSLT14.extract(tmp_path, tmp_path / "out")
    assert lines == published_lines(IWSLT14) | {"train": 6750 + 2 * 57}
    assert IWSLT14.describe(lines)[1:] == []
    for language in ("de", "en"):
        assert (tmp_path / "out" / f"train.{language}").read_bytes().count(b"\n") == 6864
        assert (tmp_path / "out" / f"test.{language}").read_bytes().count(b"\n") == 6750


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        (lambda files: files.pop("de-en/IWSLT14.TED.tst2011.de-en.en.xml"), "has no de-en/IWSLT14"),
        (lambda files: files.pop("de-en/train.tags.de-en.de"), "has no de-en/train.tags.de-en.de"),
        (
            lambda files: files.update({"de-en/train.tags.de-en.de": "nur eine\n"}),
            "train has 1 in de and 21 in en; fetch de-en.tgz again",
        ),
    ],
)
def test_archives_that_lack_something_leave_nothing(
    tmp_path: Path, damage: object, cause: str
) -> None:
    files = small_iwslt(talks=3)
    damage(files)  # type: ignore[operator]
    (tmp_path / "de-en.tgz").write_bytes(pack(files))
    with pytest.raises(ValueError, match=cause):
        IWSLT14.extract(tmp_path / "de-en.tgz", tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


# names of their own: gzip writes the time into its header, and workers must agree on a test's name
@pytest.mark.parametrize(
    "data",
    [b"", b"no archive at all", pack({"a": "x" * 9999})[:-40]],
    ids=["empty", "text", "cut short"],
)
def test_what_is_no_whole_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.tgz"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"x\.tgz (is no whole tar archive|has no b)"):
        archive.take(path, {"b": tmp_path / "b"})
    assert not (tmp_path / "b").exists()


def write_archives(folder: Path) -> Path:
    folder.mkdir()
    for name, content in small_wmt(repeats=2).items():
        (folder / name).write_bytes(content)
    return folder


def test_wmt_archives_become_the_splits(tmp_path: Path) -> None:
    folder, out = write_archives(tmp_path / "archives"), tmp_path / "out"
    lines = WMT17.extract(folder, out)
    assert lines == {
        **{"europarl-v7": 13, "commoncrawl": 10, "news-commentary-v12": 5},
        **{"newstest2013": 3, "newstest2014": 4, "newstest2017": 5},
    }
    counts = {path.name: path.read_bytes().count(b"\n") for path in out.glob("*.??")}
    assert counts == {
        **{"train.en": 28, "train.de": 28, "valid.en": 3, "valid.de": 3},
        **{"test.en": 4, "test.de": 4, "test1.en": 5, "test1.de": 5},
    }
    english = (out / "train.en").read_text(encoding="utf-8").split("\n")
    assert english[10:13] == ["one\u2028two\x85three four", "", "five six"]
    assert english[13] == PAIRS[-1][1]
    assert (out / "test1.de").read_text(encoding="utf-8").split("\n")[3] == PAIRS[3][0]
    warnings = WMT17.describe(lines)[1:]
    assert warnings[0] == "warning: europarl-v7 has 13 pairs, the published one 1,920,209"
    assert json.loads((out / "extracted.json").read_text(encoding="utf-8"))["lines"] == lines
    assert WMT17.extract(folder, out) == lines


def test_wmt_archives_that_are_missing_are_named(tmp_path: Path) -> None:
    folder = write_archives(tmp_path / "archives")
    (folder / "dev.tgz").unlink()
    with pytest.raises(ValueError, match=r"no dev\.tgz in .*archives"):
        WMT17.extract(folder, tmp_path / "out")
    other = pack({"training/europarl-v7.de-en.de": "x\n"})
    (folder / "dev.tgz").write_bytes(other)
    with pytest.raises(ValueError, match=r"dev\.tgz has no dev/newstest2013-ref"):
        WMT17.extract(folder, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


def test_a_folder_of_something_else_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "de-en.tgz").write_bytes(pack(small_iwslt(talks=1)))
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "text").write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match="precious exists and holds something else"):
        IWSLT14.extract(tmp_path / "de-en.tgz", precious)
    assert (precious / "text").read_text(encoding="utf-8") == "mine"
