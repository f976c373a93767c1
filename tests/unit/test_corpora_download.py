"""Downloads from servers that misbehave: only a complete, right file ever gets its name."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.tools.corpora import download
from fairseq_deepnet.tools.corpora.download import fetch
from fairseq_deepnet.tools.corpora.published import CORPORA, Corpus, File
from tests.support.server import PROXIES, Served, Server, serving

NAME = "text.tgz"
TEXT = gzip.compress(random.Random(1).randbytes(400_000), mtime=0)
OTHER = gzip.compress(random.Random(2).randbytes(400_000), mtime=0)


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PAUSE", 0.0)
    for name in (*PROXIES, *map(str.upper, PROXIES)):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "downloads"


@pytest.fixture
def get(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Callable[..., list[Path]]:
    """Download one file from some servers, with what was published about it."""

    def get_one(*servers: Server, **known: Any) -> list[Path]:
        file = File(NAME, tuple(f"{server.url}/{NAME}" for server in servers), **known)
        monkeypatch.setitem(CORPORA, "corpus", Corpus("one file", (file,)))
        return fetch("corpus", folder)

    return get_one


def recorded(folder: Path) -> str:
    return str(json.loads((folder / "checksums.json").read_text(encoding="utf-8"))[NAME])


def test_a_file_is_downloaded_once_and_recorded(
    server: Server, folder: Path, get: Callable[..., list[Path]]
) -> None:
    server.add(NAME, TEXT)
    for _ in range(2):
        assert get(server) == [folder / NAME]
    assert (folder / NAME).read_bytes() == TEXT
    assert server.ranges(NAME) == [None]
    assert recorded(folder) == hashlib.sha256(TEXT).hexdigest()
    assert sorted(path.name for path in folder.iterdir()) == ["checksums.json", NAME]


def test_a_connection_that_ends_midway_is_resumed_also_by_a_later_run(
    server: Server, folder: Path, get: Callable[..., list[Path]]
) -> None:
    served = server.add(NAME, TEXT)
    served.drops = [100_000, *[0] * 20]
    with pytest.raises(ValueError, match="run again to resume"):
        get(server)
    assert (folder / f"{NAME}.part").stat().st_size == 100_000
    served.drops = [150_000]
    get(server)
    assert (folder / NAME).read_bytes() == TEXT
    assert server.ranges(NAME)[-2:] == ["bytes=100000-", "bytes=150000-"]


def no_ranges(served: Served) -> None:
    served.ranges = False


def no_tag(served: Served) -> None:
    served.etag = False


def changed(served: Served) -> None:
    served.content = OTHER


@pytest.mark.parametrize("change", [no_ranges, no_tag, changed])
def test_a_file_that_cannot_be_continued_is_downloaded_from_its_beginning(
    change: Callable[[Served], None],
    server: Server,
    folder: Path,
    get: Callable[..., list[Path]],
) -> None:
    served = server.add(NAME, TEXT)
    served.drops = [100_000, *[0] * 20]
    with pytest.raises(ValueError, match="could not be downloaded"):
        get(server)
    served.drops = []
    change(served)
    get(server)
    assert (folder / NAME).read_bytes() == served.content


def test_the_next_address_is_asked_where_one_has_a_bad_file(
    server: Server, folder: Path, get: Callable[..., list[Path]]
) -> None:
    server.add(NAME, OTHER)
    with serving() as second:
        second.add(NAME, TEXT)
        sha256 = hashlib.sha256(TEXT).hexdigest()
        get(server, second, sha256=sha256, size=len(TEXT), published="them")
    assert (folder / NAME).read_bytes() == TEXT


def test_a_mirror_replaces_the_addresses(
    server: Server, get: Callable[..., list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as mirror:
        mirror.add(f"corpus/{NAME}", TEXT)
        monkeypatch.setenv("DEEPNET_MIRROR", mirror.url)
        get(server)
    assert server.asked == []


@pytest.mark.parametrize(
    ("served", "known", "cause"),
    [
        (Served(TEXT), {"sha256": "0" * 64, "published": "them"}, "instead of 000000000000"),
        (Served(TEXT), {"md5": "0" * 32, "published": "them"}, r"\(them\)"),
        (Served(TEXT), {"size": 5}, "bytes instead of 5"),
        (Served(TEXT[:-9]), {}, "not a complete gzip file"),
        (Served(b""), {}, "it is empty"),
        (Served(b"<html>", kind="text/html"), {}, "a web page"),
        (Served(TEXT, announced=len(TEXT) + 9), {}, "the connection ended after|IncompleteRead"),
        (Served(TEXT, statuses=[404]), {}, "Not Found"),
        (Served(TEXT, statuses=[503] * 20), {}, "Service Unavailable"),
    ],
)
def test_what_is_not_the_file_is_refused_in_one_line(
    served: Served,
    known: dict[str, Any],
    cause: str,
    server: Server,
    folder: Path,
    get: Callable[..., list[Path]],
) -> None:
    server.files[f"/{NAME}"] = served
    with pytest.raises(ValueError, match=f"(?s){cause}.*RAW=FOLDER") as caught:
        get(server, **known)
    assert "\n" not in str(caught.value)
    assert not (folder / NAME).exists()


def test_a_file_that_changed_on_disk_is_reported_and_left_alone(
    server: Server, folder: Path, get: Callable[..., list[Path]]
) -> None:
    server.add(NAME, TEXT)
    get(server)
    (folder / NAME).write_bytes(OTHER)
    with pytest.raises(ValueError, match=r"is there, but its checksum is .*checksums\.json"):
        get(server)
    assert (folder / NAME).read_bytes() == OTHER


def test_a_file_that_its_publisher_changed_is_accepted_without_its_recorded_checksum(
    server: Server, folder: Path, get: Callable[..., list[Path]]
) -> None:
    server.add(NAME, TEXT)
    get(server)
    (folder / NAME).unlink()
    server.add(NAME, OTHER)
    with pytest.raises(ValueError, match=r"remove its line in .*checksums\.json to accept"):
        get(server)
    (folder / "checksums.json").write_text("{}", encoding="utf-8")
    get(server)
    assert (folder / NAME).read_bytes() == OTHER


def test_a_file_that_the_user_put_there_is_checked_and_taken(
    server: Server, folder: Path, get: Callable[..., list[Path]]
) -> None:
    folder.mkdir()
    (folder / NAME).write_bytes(TEXT)
    get(server, md5=hashlib.md5(TEXT, usedforsecurity=False).hexdigest())
    assert server.asked == []


def test_the_command_prints_paths_or_what_it_would_do(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = File(NAME, (f"{server.url}/{NAME}",))
    server.add(NAME, TEXT)
    monkeypatch.setitem(CORPORA, "corpus", Corpus("one file", (file,)))
    out = str(tmp_path / "d")
    assert cli.main(["download", "corpus", "--out", out, "--dry-run"]) == 0
    assert "would download http" in capsys.readouterr().out
    assert not (tmp_path / "d").exists()
    assert cli.main(["download", "corpus", "--out", out]) == 0
    assert capsys.readouterr().out == f"{out}/{NAME}\n"
    assert cli.main(["download", "corpus", "--out", out, "--jobs", "0"]) == 2
    assert cli.main(["download", "wmt18"]) == 2
