"""OPUS-100: its layout, safe unpacking, the table of pairs, test text in training text."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairseq_deepnet.tools.corpora.builder import Row
from fairseq_deepnet.tools.corpora.published import opus100
from fairseq_deepnet.tools.corpora.published.opus100 import (
    OpusFile,
    find_archives,
    read_name,
    tabulate,
    unpack,
)
from tests.support.opus100 import TOP, pair_files, small_corpus, write_archive

WHOLE = "opus-100-corpus-v1.0.tar.gz"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return write_archive(tmp_path / "raw" / WHOLE, small_corpus(train=20))


def rows(raw: Path, folder: Path, *languages: str, overlap: bool = True) -> list[Row]:
    """The rows of RAW for FOLDER/out, unpacked into FOLDER/u."""
    value = SimpleNamespace(languages=languages, downloads=folder, unpacked=folder / "u")
    value.out, value.overlap, value.workers = folder / "out", overlap, 1
    return opus100.rows(value, lambda languages: raw)


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("opus.*")}


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        (
            "opus-100-corpus/v1.0/supervised/de-en/opus.de-en-train.de",
            OpusFile("supervised", ("de", "en"), "train", "de", False),
        ),
        (
            "zero-shot/ar-de/opus.ar-de-test.ar",
            OpusFile("zero-shot", ("ar", "de"), "test", "ar", False),
        ),
        (
            "x/supervised/en-fr/opus.en-fr-dev.fr.gz",
            OpusFile("supervised", ("en", "fr"), "dev", "fr", True),
        ),
        ("supervised/de-en/opus.de-fr-train.de", None),
        ("supervised/de-en/opus.de-en-train.fr", None),
        ("supervised/en-en/opus.en-en-train.en", None),
        ("supervised/de-en/opus.de-en-train.de.part", None),
        ("supervised/de-en/README", None),
    ],
)
def test_a_name_says_what_a_file_is(name: str, meaning: OpusFile | None) -> None:
    assert read_name(name) == meaning
    if meaning:
        assert name.endswith(meaning.path)


def test_an_archive_is_unpacked_once(archive: Path, tmp_path: Path) -> None:
    out = tmp_path / "unpacked"
    unpack([archive], out)
    wanted = {name.removeprefix(f"{TOP}/") for name in small_corpus(train=20)}
    assert files_below(out) == {name for name in wanted if "de-fr-dev" not in name}
    train = f"{TOP}/supervised/cs-en/opus.cs-en-train.cs"
    assert (out / train.removeprefix(f"{TOP}/")).read_bytes() == small_corpus(train=20)[train]
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    unpack([archive], out)
    unpack([archive], out, ["de"])
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == times


def test_only_the_languages_asked_for_are_unpacked_and_others_join(
    archive: Path, tmp_path: Path
) -> None:
    out = tmp_path / "unpacked"
    unpack([archive], out, ["de"])
    assert {path.parent.name for path in out.rglob("opus.*")} == {"de-en"}
    unpack([archive], out, ["fr"])
    assert {path.parent.name for path in out.rglob("opus.*")} == {"de-en", "en-fr"}
    unpack([archive], out, ["de", "fr"])
    assert json.loads((out / "unpacked.json").read_text(encoding="utf-8"))[WHOLE]["languages"] == [
        "de",
        "fr",
    ]
    unpack([archive], out)
    assert "supervised/cs-en/opus.cs-en-train.cs" in files_below(out)


def test_an_interrupted_unpacking_goes_on(archive: Path, tmp_path: Path) -> None:
    out = tmp_path / "unpacked"
    unpack([archive], out)
    record = json.loads((out / "unpacked.json").read_text(encoding="utf-8"))
    record[WHOLE] |= {"whole": False, "languages": []}
    (out / "unpacked.json").write_text(json.dumps(record), encoding="utf-8")
    kept = out / "supervised/cs-en/opus.cs-en-train.cs"
    short = out / "supervised/de-en/opus.de-en-train.de"
    time, content = kept.stat().st_mtime_ns, short.read_bytes()
    short.rename(f"{short}.part")
    unpack([archive], out)
    assert kept.stat().st_mtime_ns == time
    assert short.read_bytes() == content
    assert not list(out.rglob("*.part"))


def test_another_archive_of_the_same_name_replaces_what_was_there(
    archive: Path, tmp_path: Path
) -> None:
    out = tmp_path / "unpacked"
    unpack([archive], out)
    write_archive(archive, small_corpus(seed=2, train=20))
    unpack([archive], out)
    name = "supervised/de-en/opus.de-en-test.de"
    assert (out / name).read_bytes() == small_corpus(seed=2, train=20)[f"{TOP}/{name}"]


def test_nothing_is_written_outside_the_folder(tmp_path: Path) -> None:
    path = tmp_path / WHOLE
    name = "supervised/de-en/opus.de-en-train.de"
    with tarfile.open(path, "w:gz") as tar:
        for prefix in ("../../", "/tmp/deepnet-escape/"):
            entry = tarfile.TarInfo(f"{prefix}{name}")
            entry.size = 2
            tar.addfile(entry, io.BytesIO(b"x\n"))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            link = tarfile.TarInfo("supervised/de-en/opus.de-en-train.en")
            link.type, link.linkname = kind, "../../../../etc/passwd"
            tar.addfile(link)
    out = tmp_path / "a" / "b" / "unpacked"
    unpack([path], out)
    assert files_below(tmp_path) == {f"a/b/unpacked/{name}"}
    assert not Path("/tmp/deepnet-escape").exists()
    with pytest.raises(ValueError, match=r"opus\.de-en-train\.de is there, but no en side"):
        tabulate(out)


@pytest.mark.parametrize("keep", [0, 30, 2000, -5])
def test_a_damaged_archive_is_refused(archive: Path, tmp_path: Path, keep: int) -> None:
    archive.write_bytes(archive.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"is no whole tar archive .*fetch it again"):
        unpack([archive], tmp_path / "unpacked")


def test_the_table_has_every_pair_and_the_zero_shot_test(archive: Path, tmp_path: Path) -> None:
    unpack([archive], tmp_path / "unpacked")
    found = tabulate(tmp_path / "unpacked")
    assert [(row.split, *row.pair) for row in found] == [
        ("train", "cs", "en"),
        ("train", "de", "en"),
        ("train", "en", "fr"),
        ("valid", "de", "en"),
        ("valid", "en", "fr"),
        ("test", "de", "en"),
        ("test", "de", "fr"),
        ("test", "en", "fr"),
    ]
    for row in found:
        assert all(side.is_file() for side in row.sides())


def test_a_zero_shot_pair_needs_both_languages(archive: Path, tmp_path: Path) -> None:
    unpack([archive], tmp_path / "unpacked")
    found = tabulate(tmp_path / "unpacked", ["de", "cs"])
    assert {row.pair for row in found} == {("cs", "en"), ("de", "en")}


def test_the_table_is_one_that_can_be_binarised(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {row.name for row in rows(archive, tmp_path)}
    said = capsys.readouterr().err
    assert "3 pairs to train, 2 with a valid set, 3 with a test set, 1 of these zero-shot" in said
    assert "0 of 72 test sentences (3 pairs, both sides) are also in the training text" in said
    assert {"train.cs-en", "valid.cs-en", "test.de-fr"} <= names


def test_test_sentences_in_the_training_text_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = small_corpus(train=20)
    seen = files[f"{TOP}/supervised/de-en/opus.de-en-test.de"].splitlines(keepends=True)
    files[f"{TOP}/supervised/de-en/opus.de-en-train.de"] += b"".join(seen[:5])
    files[f"{TOP}/supervised/de-en/opus.de-en-train.en"] += b"other.\n" * 5
    zero_shot = files[f"{TOP}/zero-shot/de-fr/opus.de-fr-test.fr"].splitlines(keepends=True)
    files[f"{TOP}/supervised/en-fr/opus.en-fr-train.fr"] += zero_shot[0]
    files[f"{TOP}/supervised/en-fr/opus.en-fr-train.en"] += b"other.\n"
    archive = write_archive(tmp_path / WHOLE, files)
    for _ in range(2):
        rows(archive, tmp_path)
        said = capsys.readouterr().err
        assert "6 of 72 test sentences" in said
        assert "most in de-en (de): 5 of 12" in said
    pairs = json.loads((tmp_path / "out.overlap.json").read_text(encoding="utf-8"))["pairs"]
    assert pairs["de-en"]["en"] == {"lines": 12, "in_training_text": 0}
    assert pairs["de-fr"]["fr"] == {"lines": 12, "in_training_text": 1}


def test_the_whole_archive_is_preferred_to_the_pairs(archive: Path, tmp_path: Path) -> None:
    folder = archive.parent
    pair = write_archive(folder / "opus-100-corpus-de-en-v1.0.tar.gz", {})
    (folder / "other.tgz").write_bytes(b"")
    assert find_archives(folder) == [archive]
    assert find_archives(archive) == [archive]
    archive.unlink()
    assert find_archives(folder) == [pair]


def test_an_unpacked_folder_is_used_where_it_is(tmp_path: Path) -> None:
    raw = tmp_path / "mine"
    for name, content in small_corpus(train=20).items():
        path = raw / "deeper" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    prefixes = {row.prefix for row in rows(raw, tmp_path, overlap=False)}
    assert f"{raw}/deeper/{TOP}/supervised/de-en/opus.de-en-train" in prefixes
    assert not (tmp_path / "u").exists()


def test_bad_input_is_refused(archive: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="holds no text of OPUS-100"):
        rows(empty, tmp_path)
    with pytest.raises(ValueError, match="has no training text of nl"):
        rows(archive, tmp_path, "nl", "de")
    twice = tmp_path / "twice"
    for copy in ("a", "b"):
        for name, content in pair_files("supervised", "train", {"de": ["x"], "en": ["y"]}).items():
            path = twice / copy / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    with pytest.raises(ValueError, match=r"both .* are there; remove one"):
        rows(twice, tmp_path)
    assert not list(tmp_path.glob("out*"))
