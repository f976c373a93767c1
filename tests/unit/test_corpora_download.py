"""Downloads from servers that misbehave; only a complete and correct file gets its name."""

from __future__ import annotations

import gzip
import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet.tools.corpora import download
from fairseq_deepnet.tools.corpora.published import CORPORA, Corpus, File
from tests.support.server import Served, Server, serving

NAME = "text.tgz"
TEXT = gzip.compress(random.Random(1).randbytes(400_000), mtime=0)
OTHER = gzip.compress(random.Random(2).randbytes(400_000), mtime=0)
Get = Callable[..., Path]


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture
def get(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Get:
    """Return a function that downloads one file with published facts from some servers."""
    monkeypatch.setattr(download, "PAUSE", 0.0)
    monkeypatch.setenv("no_proxy", "*")

    def get_one(*servers: Server, **published: Any) -> Path:
        file = File(NAME, tuple(f"{server.url}/{NAME}" for server in servers), **published)
        monkeypatch.setitem(CORPORA, "corpus", Corpus("one file", (file,)))
        return download.fetch("corpus", tmp_path / "downloads")[0]

    return get_one


def test_a_file_is_downloaded_once(server: Server, get: Get) -> None:
    server.add(NAME, TEXT)
    for _ in range(2):
        path = get(server)
    assert path.read_bytes() == TEXT
    assert server.asked == [(f"/{NAME}", None)]
    assert [path.name for path in path.parent.iterdir()] == [NAME]


def test_an_interrupted_download_is_resumed_by_a_later_run(
    server: Server, get: Get, tmp_path: Path
) -> None:
    served = server.add(NAME, TEXT)
    served.drops = [100_000, *[0] * 20]
    with pytest.raises(ValueError, match="run again to resume"):
        get(server)
    served.drops = [150_000]
    get(server).rename(tmp_path / "downloads" / f"{NAME}.part")  # as if killed before the rename
    assert get(server).read_bytes() == TEXT
    # each request begins with the last byte, which a response without content removes
    spans = ["bytes=99995-", "bytes=149999-", f"bytes={len(TEXT) - 1}-"]
    assert [span for _, span in server.asked[-3:]] == spans


@pytest.mark.parametrize("change", [{"ranges": False}, {"content": OTHER}])
def test_a_download_that_cannot_be_resumed_starts_over(
    change: dict[str, Any], server: Server, get: Get
) -> None:
    served = server.add(NAME, TEXT)
    served.drops = [100_000, *[0] * 20]
    with pytest.raises(ValueError, match="could not be downloaded"):
        get(server)
    served.drops = []
    for name, value in change.items():
        setattr(served, name, value)
    assert get(server).read_bytes() == served.content


def test_the_next_address_is_used_if_one_has_a_bad_file(server: Server, get: Get) -> None:
    server.add(NAME, OTHER)
    with serving() as second:
        second.add(NAME, TEXT)
        sha256 = hashlib.sha256(TEXT).hexdigest()
        path = get(server, second, sha256=sha256, size=len(TEXT), published="them")
    assert path.read_bytes() == TEXT


def test_a_mirror_replaces_the_addresses(
    server: Server, get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as mirror:
        mirror.add(f"corpus/{NAME}", TEXT)
        monkeypatch.setenv("DEEPNET_MIRROR", mirror.url)
        get(server)
    assert server.asked == []


@pytest.mark.parametrize(
    ("served", "published", "cause"),
    [
        (Served(TEXT), {"sha256": "0" * 64, "published": "them"}, "instead of 000000000000"),
        (Served(TEXT), {"md5": "0" * 32, "published": "them"}, r"\(them\)"),
        (Served(TEXT), {"size": 5}, "bytes instead of 5"),
        (Served(TEXT[:-9]), {}, "not a complete gzip file"),
        (Served(b""), {}, "it is empty"),
        (Served(b"<html>", kind="text/html"), {}, "a web page"),
        (Served(TEXT, status=404), {}, "Not Found"),
    ],
)
def test_any_other_content_is_refused_in_one_line(
    served: Served, published: dict[str, Any], cause: str, server: Server, get: Get, tmp_path: Path
) -> None:
    server.files[f"/{NAME}"] = served
    with pytest.raises(ValueError, match=f"(?s){cause}.*RAW=FOLDER") as caught:
        get(server, **published)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "downloads" / NAME).exists()


def test_a_damaged_file_is_refused_and_not_replaced(server: Server, get: Get) -> None:
    server.add(NAME, TEXT)
    path = get(server)
    path.write_bytes(TEXT[:-9])
    with pytest.raises(ValueError, match="exists, but it is not a complete gzip file"):
        get(server)
    assert path.read_bytes() == TEXT[:-9]
