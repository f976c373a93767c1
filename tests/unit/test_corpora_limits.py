"""Archives that unpack to a thousand times their size, lines without an end, and the like."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.tools.corpora import archive, text
from fairseq_deepnet.tools.corpora.download import damage
from fairseq_deepnet.tools.corpora.published import opus100
from fairseq_deepnet.tools.corpora.published.iwslt14 import IWSLT14
from fairseq_deepnet.tools.evaluation.sets import read_raw
from fairseq_deepnet.tools.translation.stream import live_windows, windows_of
from tests.support.archives import small_iwslt

LARGE = 80 << 20
"""Bytes that 350 KB unpack to: more than any file may that is so small."""
OPUS = "opus-100-corpus/v1.0/supervised/de-en/opus.de-en-{}.{}"


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive in the layout of OPUS-100, IWSLT 2014 and Flores-101, of zeros."""
    path = tmp_path_factory.mktemp("bomb") / "opus-100-corpus-v1.0.tar.gz"
    zeros = bytes(1 << 20)
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, size in (
            (OPUS.format("train", "de"), 10),
            (OPUS.format("train", "en"), LARGE),
            ("de-en/train.tags.de-en.de", 10),
        ):
            member = tarfile.TarInfo(name)
            member.size = size
            tar.addfile(member, io.BytesIO(zeros * (size >> 20) or b"x\n" * 5))
    assert path.stat().st_size < 400_000
    return path


def test_opus_100_is_not_unpacked_beyond_what_text_packs_to(bomb: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unpacks to more than 64M bytes.* DEEPNET_MAX_UNPACKED="):
        opus100.unpack([bomb], tmp_path)
    left = {path.name: path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
    assert left.pop("unpacked.json") < 300
    assert left == {"opus.de-en-train.de": 10}


def test_a_variable_lets_a_file_unpack_to_more(
    bomb: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPNET_MAX_UNPACKED", "1G")
    archive.take(bomb, {OPUS.format("train", "en"): tmp_path / "en"})
    assert (tmp_path / "en").stat().st_size == LARGE


def test_archives_of_other_corpora_neither(bomb: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="DEEPNET_MAX_UNPACKED"):
        archive.take(bomb, {OPUS.format("train", "en"): tmp_path / "en"})
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="DEEPNET_MAX_UNPACKED"):
        read_raw(bomb, ["opus.de-en-train.en"])
    assert "DEEPNET_MAX_UNPACKED" in (damage(bomb, bomb.name) or "")


@pytest.mark.parametrize("opener", [gzip.open, bz2.open, lzma.open])
def test_the_limit_holds_however_an_archive_is_packed(
    opener: Callable[..., gzip.GzipFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPNET_MAX_UNPACKED", "2M")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", encoding="utf-8") as tar:
        for name, size in (("small", 5), ("large", 3 << 20)):
            member = tarfile.TarInfo(name)
            member.size = size
            tar.addfile(member, io.BytesIO(b"x" * size))
    path = tmp_path / "packed"
    with opener(path, "wb") as stream:
        stream.write(content.getvalue())
    archive.take(path, {"small": tmp_path / "small"})
    with pytest.raises(ValueError, match="unpacks to more than 2M"):
        archive.take(path, {"large": tmp_path / "large"})
    monkeypatch.setenv("DEEPNET_MAX_UNPACKED", "5M")
    archive.take(path, {"large": tmp_path / "large"})
    assert (tmp_path / "large").stat().st_size == 3 << 20


def test_a_sparse_member_that_says_to_be_large_is_not_written(tmp_path: Path) -> None:
    member = tarfile.TarInfo("large")
    member.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[483:495] = b"%011o\0" % (1 << 32)  # its size, once written
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    path = tmp_path / "sparse.tar"
    path.write_bytes(bytes(header) + bytes(1024))
    with pytest.raises(ValueError, match="unpacks to more than 64M"):
        archive.take(path, {"large": tmp_path / "large"})
    assert not (tmp_path / "large").exists()
    assert not (tmp_path / "large.part").exists()


def test_an_archive_has_so_many_members_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "many.tar"
    with tarfile.open(path, "w") as tar:
        for number in range(20):
            tar.addfile(tarfile.TarInfo(f"folder/{number}"))
    monkeypatch.setenv("DEEPNET_MAX_MEMBERS", "10")
    with pytest.raises(ValueError, match="more than 10 members; DEEPNET_MAX_MEMBERS=COUNT"):
        archive.take(path, {"folder/15": tmp_path / "x"})
    monkeypatch.delenv("DEEPNET_MAX_MEMBERS")
    archive.take(path, {"folder/15": tmp_path / "x"})


def test_nothing_is_left_of_an_extraction_that_went_too_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    with tarfile.open(folder / "de-en.tgz", "w:gz") as tar:
        for name, content in small_iwslt().items():
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    monkeypatch.setenv("DEEPNET_MAX_UNPACKED", "9K")
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="DEEPNET_MAX_UNPACKED"):
        IWSLT14.extract(folder, out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]
    monkeypatch.delenv("DEEPNET_MAX_UNPACKED")
    assert IWSLT14.extract(folder, out)["train"] > 0


def test_packed_text_is_read_as_far_as_text_packs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = b"word " * 200_000 + b"\n"
    for name, lines in (("train", LARGE // len(line)), ("valid", 1)):
        for language in ("xx", "yy"):
            with gzip.open(tmp_path / f"{name}.{language}.gz", "wb", 1) as stream:
                for _ in range(lines):
                    stream.write(line if name == "train" else b"a line\n")
    words = ["preprocess", "pair", "--src", "xx", "--tgt", "yy", "--train", str(tmp_path / "train")]
    words += ["--valid", str(tmp_path / "valid"), "--workers", "1", "--out", str(tmp_path / "out")]
    assert cli.main(words) == 2
    said = capsys.readouterr().err.splitlines()
    assert "train.xx.gz unpacks to more than 64M" in said[-1]


def test_a_line_without_an_end_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "long"
    path.write_bytes(b"short\n" + b"x" * (2 << 20) + b"\nshort\n")
    lines = text.read_lines(path)
    assert next(lines) == "short"
    with pytest.raises(
        ValueError, match=r"long, line 2: longer than 1M bytes.*DEEPNET_MAX_LINE=2M"
    ):
        next(lines)
    monkeypatch.setenv("DEEPNET_MAX_LINE", "3M")
    assert [len(line) for line in text.read_lines(path)] == [5, 2 << 20, 5]


@pytest.mark.parametrize("length", [9, 10])
def test_the_limit_of_a_line_counts_its_end(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPNET_MAX_LINE", "10")
    path = tmp_path / "lines"
    path.write_bytes(b"x" * length + b"\n" + b"x" * 10)
    if length == 9:
        assert list(text.read_lines(path)) == ["x" * 9, "x" * 10]
    else:
        with pytest.raises(ValueError, match="line 1: longer than 10 bytes"):
            list(text.read_lines(path))


@pytest.mark.parametrize("said", ["10 MB", "-1", "x", "1.5G", "9" * 40])
def test_a_limit_is_a_size(said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lines").write_text("x\n", encoding="utf-8")
    monkeypatch.setenv("DEEPNET_MAX_LINE", said)
    with pytest.raises(ValueError, match="a size such as 300M is expected"):
        list(text.read_lines(tmp_path / "lines"))


def test_chunks_are_shorter_where_lines_are_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(text, "_AT_ONCE", 4)
    lines = [f"{number} " + "x" * (number % 7) * 20 for number in range(100)]
    for side in ("xx", "yy"):
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    chunks = list(text.pair_chunks(tmp_path / "xx", tmp_path / "yy", 50))
    assert max(len(chunk.source) for chunk in chunks) < 30
    pairs = [pair for chunk in chunks for pair in chunk.decode(tmp_path, tmp_path)]
    assert pairs == [(line, line) for line in lines]
    assert [chunk.start for chunk in chunks][:2] == [1, 1 + len(chunks[0].source)]
    numbered = list(text.numbered_chunks(tmp_path / "xx", 50))
    assert [line.decode().rstrip("\n") for _, found in numbered for line in found] == lines


def test_a_window_is_shorter_where_lines_are_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairseq_deepnet.tools.translation.stream.CHUNK_BYTES", 100)
    (tmp_path / "text").write_text("".join(f"{'x' * 40}\n" for _ in range(7)), encoding="utf-8")
    assert [len(window) for window in windows_of([tmp_path / "text"], 50)] == [3, 3, 1]


@pytest.mark.parametrize("length", [2 << 20, 20])
def test_lines_of_a_pipe_have_a_limit_and_those_before_are_given(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if length < 1000:
        monkeypatch.setenv("DEEPNET_MAX_LINE", "10")
    (tmp_path / "pipe").write_bytes(b"one\ntwo\n" + b"x" * length)
    descriptor = os.open(tmp_path / "pipe", os.O_RDONLY)
    try:
        windows = live_windows(descriptor, 10, 0.2)
        assert next(windows) == ["one", "two"]
        with pytest.raises(ValueError, match=r"standard input, line 3: longer than"):
            next(windows)
    finally:
        os.close(descriptor)


def test_limits_are_far_above_the_real_corpora(shared_data: Path) -> None:
    longest = 0
    for path in shared_data.glob("multi30k/*.gz"):
        longest = max(longest, *map(len, text.raw_lines(path)))
    assert 100 < longest < text.MAX_LINE / 1000
    for path in shared_data.glob("*/*.tar.xz"):
        with (
            archive.open_archive(path) as stream,
            tarfile.open(fileobj=stream, mode="r|") as tar,
        ):
            sizes = [member.size for member in archive.members(tar, path)]
        assert sum(sizes) < archive.MAX_RATIO * path.stat().st_size / 2
        assert len(sizes) < archive.MAX_MEMBERS / 10
