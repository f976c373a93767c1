"""Downloads from servers that misbehave: nothing wrong ever gets the name of the file."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import random
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.tools.corpora import published, transfer
from fairseq_deepnet.tools.corpora.download import Downloader, download, indexed_by_mtdata
from fairseq_deepnet.tools.corpora.published import File, catalogue
from fairseq_deepnet.tools.corpora.published.opus100 import LANGUAGES
from tests.support.server import PROXIES, Server, serving

NAME = "text.tgz"
TEXT = gzip.compress(random.Random(1).randbytes(400_000), mtime=0)
OTHER = gzip.compress(random.Random(2).randbytes(400_000), mtime=0)


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "downloads"


def file_at(*servers: Server, name: str = NAME, **known: Any) -> File:
    return File(name, tuple(f"{server.url}/{name}" for server in servers), **known)


def get(folder: Path, *files: File, jobs: int = 1, **options: Any) -> list[Path]:
    downloader = Downloader("corpus", folder, **({"wait": 0.0, "timeout": 600.0} | options))
    return download(downloader, files, jobs)


def record_of(folder: Path, name: str = NAME) -> dict[str, Any]:
    return dict(json.loads((folder / "checksums.json").read_text(encoding="utf-8"))[name])


def assert_refused(folder: Path, file: File, *causes: str, **options: Any) -> None:
    """No file, no rest of one, and one line that says why and what to do."""
    with pytest.raises(ValueError, match="RAW=FOLDER") as caught:
        get(folder, file, **options)
    message = str(caught.value)
    assert "\n" not in message
    for cause in causes:
        assert cause in message
    assert not (folder / file.name).exists()


def test_a_changed_file_on_a_broken_line_is_fetched_afresh_only_once(
    server: Server, folder: Path
) -> None:
    server.add(NAME, TEXT).drops = [100_000, 10**9] * 20
    assert_refused(folder, file_at(server, sha256="0" * 64), "refused")
    assert len(server.asked) < 12


def test_a_file_is_downloaded_once_and_recorded(
    server: Server, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.add(NAME, TEXT)
    for _ in range(2):
        assert get(folder, file_at(server)) == [folder / NAME]
    assert (folder / NAME).read_bytes() == TEXT
    assert server.ranges(NAME) == [None]
    record = record_of(folder)
    assert record["sha256"] == hashlib.sha256(TEXT).hexdigest()
    assert record["size"] == len(TEXT)
    assert record["trusted"] == "first use"
    assert sorted(path.name for path in folder.iterdir()) == ["checksums.json", NAME]
    said = capsys.readouterr().err
    assert "trusted on first use and recorded in" in said
    assert "there already" in said


def test_a_connection_that_ends_midway_is_taken_up(server: Server, folder: Path) -> None:
    server.add(NAME, TEXT).drops = [100_000, 250_000]
    get(folder, file_at(server))
    assert (folder / NAME).read_bytes() == TEXT
    assert server.ranges(NAME) == [None, "bytes=100000-", "bytes=250000-"]


def test_a_part_of_an_earlier_run_is_taken_up(server: Server, folder: Path) -> None:
    server.add(NAME, TEXT).drops = [100_000]
    _vanish_after_first(server)
    assert_refused(folder, file := file_at(server), "404")
    assert (folder / f"{NAME}.part").stat().st_size == 100_000
    server.add(NAME, TEXT)
    get(folder, file)
    assert (folder / NAME).read_bytes() == TEXT
    assert server.ranges(NAME) == [None, "bytes=100000-", "bytes=100000-"]


def _vanish_after_first(server: Server) -> None:
    """Answer the next request for NAME as set, and every later one with 404."""
    served = server.files[f"/{NAME}"]

    class Once(list[int]):
        def pop(self, *_: Any) -> int:
            del server.files[f"/{NAME}"]
            return list.pop(self, 0)

    served.drops = Once(served.drops)


def test_a_server_without_ranges_starts_afresh(server: Server, folder: Path) -> None:
    served = server.add(NAME, TEXT)
    served.ranges, served.drops = False, [100_000]
    get(folder, file_at(server))
    assert (folder / NAME).read_bytes() == TEXT
    assert server.ranges(NAME) == [None, "bytes=100000-"]


@pytest.mark.parametrize("shorter", [False, True])
def test_a_file_that_changed_meanwhile_starts_afresh(
    server: Server, folder: Path, shorter: bool
) -> None:
    _leave_part(server, folder, TEXT[:100_000], TEXT)
    new = OTHER if not shorter else gzip.compress(random.Random(3).randbytes(50_000), mtime=0)
    server.add(NAME, new)
    get(folder, file_at(server))
    assert (folder / NAME).read_bytes() == new


def test_a_changed_file_without_a_checksum_of_its_own_is_not_mixed(
    server: Server, folder: Path
) -> None:
    old, new = b"old\n" * 1000, b"new\n" * 1000
    _leave_part(server, folder, old[:2000], old, name="list.txt")
    server.add("list.txt", new)
    get(folder, file_at(server, name="list.txt"))
    assert (folder / "list.txt").read_bytes() == new


def _leave_part(server: Server, folder: Path, part: bytes, whole: bytes, name: str = NAME) -> None:
    """What a run that was killed leaves."""
    folder.mkdir()
    (folder / f"{name}.part").write_bytes(part)
    notes = {"url": f"{server.url}/{name}", "length": len(whole)}
    notes |= {"ETag": server.add(name, whole).tag, "Last-Modified": None}
    (folder / f"{name}.part.json").write_text(json.dumps(notes), encoding="utf-8")


def test_a_part_of_unknown_origin_is_replaced(server: Server, folder: Path) -> None:
    server.add(NAME, TEXT)
    folder.mkdir()
    (folder / f"{NAME}.part").write_bytes(OTHER[:1000])
    get(folder, file_at(server))
    assert (folder / NAME).read_bytes() == TEXT
    assert server.ranges(NAME) == [None]


def test_a_whole_part_only_needs_its_name(server: Server, folder: Path) -> None:
    _leave_part(server, folder, TEXT, TEXT)
    get(folder, file_at(server))
    assert (folder / NAME).read_bytes() == TEXT
    assert server.ranges(NAME) == [f"bytes={len(TEXT)}-"]


def test_parts_that_do_not_fit_together_are_fetched_anew(server: Server, folder: Path) -> None:
    _leave_part(server, folder, OTHER[:100_000], TEXT)
    get(folder, file_at(server, sha256=hashlib.sha256(TEXT).hexdigest()))
    assert (folder / NAME).read_bytes() == TEXT
    assert server.ranges(NAME) == ["bytes=100000-", None]


def test_a_second_mirror_continues_the_first_where_a_checksum_is_known(
    server: Server, folder: Path
) -> None:
    server.add(NAME, TEXT).drops = [100_000]
    _vanish_after_first(server)
    with serving() as second:
        second.add(NAME, TEXT)
        get(folder, file_at(server, second, sha256=hashlib.sha256(TEXT).hexdigest()))
        assert second.ranges(NAME) == ["bytes=100000-"]
    assert (folder / NAME).read_bytes() == TEXT


def test_a_second_mirror_starts_afresh_where_no_checksum_is_known(
    server: Server, folder: Path
) -> None:
    server.add(NAME, TEXT).drops = [100_000]
    _vanish_after_first(server)
    with serving() as second:
        second.add(NAME, OTHER)
        get(folder, file_at(server, second))
        assert second.ranges(NAME) == [None]
    assert (folder / NAME).read_bytes() == OTHER


def test_the_next_mirror_is_asked_when_one_has_no_such_file(server: Server, folder: Path) -> None:
    server.add(NAME, TEXT)
    with serving() as empty:
        get(folder, file_at(empty, server))
        assert empty.ranges(NAME) == [None]
    assert record_of(folder)["source"] == f"{server.url}/{NAME}"


def test_a_mirror_of_ones_own_comes_first(server: Server, folder: Path) -> None:
    server.add(NAME, OTHER)
    with serving() as own:
        own.add(f"corpus/{NAME}", TEXT)
        get(folder, file_at(server), mirrors=(f"{own.url}/",))
    assert (folder / NAME).read_bytes() == TEXT
    assert server.asked == []


def test_nothing_but_ones_own_mirror_is_asked_if_so_wished(server: Server, folder: Path) -> None:
    server.add(NAME, TEXT)
    with serving() as own:
        options = {"mirrors": (own.url,), "only_mirrors": True}
        assert_refused(folder, file_at(server), own.url, "404", **options)
        own.add(f"corpus/{NAME}", OTHER)
        get(folder, file_at(server, size=1, sha256="0" * 64), **options)
    assert server.asked == []
    assert record_of(folder)["trusted"] == "first use"


def test_a_busy_server_is_asked_again(server: Server, folder: Path) -> None:
    server.add(NAME, TEXT).statuses = [503, 429]
    get(folder, file_at(server))
    assert server.ranges(NAME) == [None, None, None]


@pytest.mark.parametrize(
    ("ranges", "cause"),
    [(True, "contradicts itself about the file"), (False, "the connection ended after 400,")],
)
def test_a_server_that_announces_more_than_it_has_is_given_up(
    server: Server, folder: Path, ranges: bool, cause: str
) -> None:
    served = server.add(NAME, TEXT)
    served.announced, served.ranges = len(TEXT) + 10, ranges
    assert_refused(folder, file_at(server), cause)


def test_a_server_that_announces_less_gives_no_whole_file(server: Server, folder: Path) -> None:
    server.add(NAME, TEXT).announced = len(TEXT) - 10
    assert_refused(folder, file_at(server), "it is not a whole gzip file")
    assert not (folder / f"{NAME}.part").exists()


def test_a_damaged_archive_is_refused(server: Server, folder: Path) -> None:
    server.add(NAME, TEXT[:200_000] + b"\0\0\0\0" + TEXT[200_004:])
    assert_refused(folder, file_at(server), "it is not a whole gzip file")


def test_an_empty_file_is_refused(server: Server, folder: Path) -> None:
    server.add("list.txt", b"")
    assert_refused(folder, file_at(server, name="list.txt"), "it is empty")


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/octet-stream"])
@pytest.mark.parametrize("name", [NAME, "spm.model"])
def test_a_web_page_is_no_corpus(server: Server, folder: Path, kind: str, name: str) -> None:
    server.add(name, b"\n<!DOCTYPE html><title>Please log in</title>").kind = kind
    assert_refused(folder, file_at(server, name=name), "the server sends a web page")


@pytest.mark.parametrize(
    ("known", "cause"),
    [
        ({"size": 7}, f"the file has {len(TEXT):,} bytes instead of 7"),
        ({"sha256": "0" * 64, "published": "X"}, "instead of the 000000000000... of X"),
        ({"md5": "0" * 32, "published": "Y"}, "its MD5 is"),
    ],
)
def test_what_the_catalogue_does_not_know_is_refused(
    server: Server, folder: Path, known: dict[str, Any], cause: str
) -> None:
    server.add(NAME, TEXT)
    file = file_at(server, **known)
    assert_refused(folder, file, cause)
    get(folder, file, accept=True)
    assert record_of(folder)["trusted"] == "told to accept"
    get(folder, file)  # the record is newer than the catalogue


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_published_checksum_is_named_as_the_reason_for_trust(
    server: Server, folder: Path, kind: str
) -> None:
    server.add(NAME, TEXT)
    known = {kind: hashlib.new(kind, TEXT).hexdigest(), "published": "X"}
    get(folder, file_at(server, size=len(TEXT), **known))
    assert record_of(folder)["trusted"] == f"{kind} published by X"


def test_a_second_first_use_is_not_trusted(server: Server, folder: Path) -> None:
    server.add(NAME, TEXT)
    get(folder, file_at(server))
    (folder / NAME).unlink()
    server.add(NAME, OTHER)
    assert_refused(folder, file_at(server), "recorded in checksums.json is")
    get(folder, file_at(server), accept=True)
    assert (folder / NAME).read_bytes() == OTHER
    assert record_of(folder)["sha256"] == hashlib.sha256(OTHER).hexdigest()


def test_a_file_that_was_changed_on_disk_is_noticed_and_left_alone(
    server: Server, folder: Path
) -> None:
    server.add(NAME, TEXT)
    get(folder, file_at(server))
    (folder / NAME).write_bytes(OTHER)
    with pytest.raises(ValueError, match="remove it to download it again"):
        get(folder, file_at(server))
    assert (folder / NAME).read_bytes() == OTHER


def test_a_file_that_the_user_put_there_is_checked(server: Server, folder: Path) -> None:
    folder.mkdir()
    (folder / NAME).write_bytes(TEXT)
    get(folder, file_at(server))
    assert server.asked == []
    assert record_of(folder)["source"] == "found in the folder"
    (folder / NAME).write_bytes(TEXT[:-5])
    (folder / "checksums.json").unlink()
    with pytest.raises(ValueError, match="not a whole gzip file"):
        get(folder, file_at(server))


@pytest.mark.parametrize("damaged", ["[]", "{", '{"text.tgz": 1}', '{"text.tgz": {"size": 1}}'])
def test_a_damaged_record_is_an_error(server: Server, folder: Path, damaged: str) -> None:
    folder.mkdir()
    (folder / "checksums.json").write_text(damaged, encoding="utf-8")
    with pytest.raises(ValueError, match=r"checksums\.json is damaged: .*remove it to trust anew"):
        get(folder, file_at(server))


def test_files_come_in_parallel(server: Server, folder: Path) -> None:
    server.meet = threading.Barrier(3, timeout=600)  # no answer before three have asked
    files = []
    for number in range(3):
        server.add(f"{number}.tgz", TEXT)
        files.append(file_at(server, name=f"{number}.tgz"))
    assert [path.name for path in get(folder, *files, jobs=3)] == ["0.tgz", "1.tgz", "2.tgz"]
    assert set(json.loads((folder / "checksums.json").read_text(encoding="utf-8"))) == {
        "0.tgz",
        "1.tgz",
        "2.tgz",
    }


def test_one_missing_file_does_not_keep_the_others_away(server: Server, folder: Path) -> None:
    server.add("good.tgz", TEXT)
    files = [file_at(server, name="bad.tgz"), file_at(server, name="good.tgz")]
    with pytest.raises(
        ValueError, match=r"1 of 2 files of corpus .*bad\.tgz \(http.*: 404"
    ) as caught:
        get(folder, *files)
    assert "good.tgz" not in str(caught.value)
    assert (folder / "good.tgz").is_file()


def test_without_a_connection_one_line_names_the_urls_and_the_remedy(folder: Path) -> None:
    with serving() as gone:
        files = [file_at(gone, name="a.tgz"), file_at(gone, name="b.tgz")]
    with pytest.raises(ValueError, match="no connection") as caught:
        get(folder, *files)
    message = str(caught.value)
    assert "\n" not in message
    for words in (
        *files[0].urls,
        *files[1].urls,
        "https_proxy",
        "RAW=FOLDER",
        "Connection refused",
    ):
        assert words in message
    assert [path.name for path in folder.iterdir()] == []


def test_the_proxy_of_the_environment_is_asked(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(NAME, TEXT)
    monkeypatch.setenv("http_proxy", server.url)
    get(folder, File(NAME, (f"http://corpora.example/{NAME}",)))
    assert server.asked == [(f"http://corpora.example/{NAME}", None)]
    assert (folder / NAME).read_bytes() == TEXT


def test_two_downloads_of_one_file_do_not_meet(server: Server, folder: Path) -> None:
    server.add(NAME, TEXT)
    folder.mkdir()
    with (folder / f"{NAME}.part").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert_refused(folder, file_at(server), "another download of it is under way")
    get(folder, file_at(server))


def test_what_another_process_finished_meanwhile_is_taken_as_it_is(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    part = folder / f"{NAME}.part"
    part.write_bytes(TEXT)
    real = fcntl.flock

    def lock(stream: Any, operation: int) -> None:
        if not (folder / NAME).exists():  # named between our opening and our lock
            part.rename(folder / NAME)
        real(stream, operation)

    monkeypatch.setattr(fcntl, "flock", lock)
    get(folder, file_at(server))
    assert (folder / NAME).read_bytes() == TEXT
    assert server.asked == []


def test_a_part_that_another_process_replaced_is_opened_anew(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(NAME, TEXT)
    real, calls = fcntl.flock, []

    def lock(stream: Any, operation: int) -> None:
        if not calls:  # others gave up and began again between our opening and our lock
            (folder / f"{NAME}.part").unlink()
            (folder / f"{NAME}.part").touch()
        calls.append(operation)
        real(stream, operation)

    monkeypatch.setattr(fcntl, "flock", lock)
    get(folder, file_at(server))
    assert (folder / NAME).read_bytes() == TEXT
    assert len(calls) == 2


def test_mtdata_is_asked_for_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        types.SimpleNamespace(url="https://a.example/x/one.tgz"),
        types.SimpleNamespace(url=("https://b.example/one.tgz", "https://b.example/dev.tgz")),
        types.SimpleNamespace(url="https://c.example/2017/dev.tgz"),
        types.SimpleNamespace(url="https://a.example/x/one.tgz"),
    ]
    index = types.ModuleType("mtdata.index")
    index.Index = types.SimpleNamespace(  # type: ignore[attr-defined]
        get_instance=lambda: types.SimpleNamespace(get_entries=lambda: iter(entries))
    )
    monkeypatch.setitem(sys.modules, "mtdata", types.ModuleType("mtdata"))
    monkeypatch.setitem(sys.modules, "mtdata.index", index)
    one = File("one.tgz", ("https://old.example/one.tgz",), md5="0" * 32)
    dev = File("dev.tgz", ("https://old.example/2017/dev.tgz",))
    assert indexed_by_mtdata([one, dev, File("three.tgz", ("https://old.example/three.tgz",))]) == {
        "one.tgz": ("https://a.example/x/one.tgz", "https://b.example/one.tgz"),
        "dev.tgz": ("https://c.example/2017/dev.tgz",),
    }


def test_without_mtdata_its_index_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mtdata.index", None)
    with pytest.raises(ValueError, match="mtdata is not installed"):
        indexed_by_mtdata([File("one.tgz", ())])


@pytest.mark.parametrize("name", catalogue())
def test_the_catalogue_is_sound(name: str) -> None:
    for files in (catalogue()[name].files, catalogue()[name].parts):
        assert len({file.name for file in files}) == len(files)
        for file in files:
            assert file.urls
            assert all(url.startswith(("http://", "https://")) for url in file.urls)
            assert all(url.endswith(f"/{file.name}") for url in file.urls)
            assert bool(file.published) == bool(file.sha256 or file.md5)
            for checksum, digits in ((file.sha256, 64), (file.md5, 32)):
                assert checksum is None or len(bytes.fromhex(checksum)) * 2 == digits


def test_a_corpus_is_found_by_its_module_being_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "newcomer.py").write_text(
        "from fairseq_deepnet.tools.corpora.published import Corpus, file_at\n"
        "CORPORA = {'new': Corpus('new text', (file_at(['http://new.example'], 'new.tgz'),))}\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(published, "__path__", [*published.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, f"{published.__name__}.newcomer", raising=False)
    catalogue.cache_clear()
    try:
        assert cli.main(["download", "new", "--list"]) == 0
        assert capsys.readouterr().out == "new/new.tgz\t-\thttp://new.example/new.tgz\n"
    finally:
        sys.modules.pop(f"{published.__name__}.newcomer", None)
        catalogue.cache_clear()


def test_opus_100_has_99_languages_besides_english_and_comes_in_pieces() -> None:
    assert len(set(LANGUAGES)) == len(LANGUAGES) == 99
    assert "en" not in LANGUAGES
    names = [file.name for file in catalogue()["opus100"].select(["de", "fr"])]
    assert names == [
        "opus-100-corpus-de-en-v1.0.tar.gz",
        "opus-100-corpus-en-fr-v1.0.tar.gz",
        "opus-100-corpus-zeroshot-v1.0.tar.gz",
    ]
    with pytest.raises(ValueError, match="no language xx; choose from af"):
        catalogue()["opus100"].select(["de", "xx"])
    with pytest.raises(ValueError, match="comes whole"):
        catalogue()["wmt17"].select(["de"])


def test_two_languages_of_multi30k_are_six_files() -> None:
    names = {file.name for file in catalogue()["multi30k"].select(["de", "en"])}
    splits = ("train", "val", "test_2016_flickr")
    assert names == {f"{split}.{code}.gz" for split in splits for code in ("de", "en")}


def test_the_catalogue_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["download", "--list"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert ["wmt17/training-parallel-nc-v12.tgz", "168591139"] in [row[:2] for row in rows]
    assert all(row[2].startswith("http") for row in rows)


@pytest.mark.parametrize(
    ("arguments", "variables", "cause"),
    [
        ([], {}, "CORPUS is None; choose from flores101"),
        (["wmt99"], {}, "CORPUS is 'wmt99'; choose from flores101, ted, m2m100, iwslt14"),
        (["wmt17", "--jobs", "0"], {}, "--jobs is 0; it must be above 0"),
        (["wmt17"], {"DEEPNET_MIRROR": "/files"}, "it must begin with http:// or https://"),
        (["wmt17"], {"DEEPNET_MIRROR_ONLY": "1"}, "needs DEEPNET_MIRROR=URL"),
        (["wmt17"], {"DEEPNET_MIRROR_ONLY": "yes"}, "DEEPNET_MIRROR_ONLY is 'yes'"),
    ],
)
def test_bad_usage_is_refused_in_one_line(
    arguments: list[str],
    variables: dict[str, str],
    cause: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["download", *arguments, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert cause in said.err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    assert cli.main(["download", "ted", "--out", str(tmp_path / "file" / "out")]) == 2
    assert "cannot write to" in capsys.readouterr().err


def test_progress_is_a_line_now_and_then_where_nobody_watches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with transfer.progress_bar("x.tgz", 5, 100) as bar:
        bar.delay = 0
        bar.update(45)
        bar.refresh()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("[download] x.tgz:  50%|")


def test_the_paths_are_printed(
    server: Server,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.add("iwslt14/de-en.tgz", TEXT)
    monkeypatch.setenv("DEEPNET_MIRROR", server.url)
    monkeypatch.setenv("DEEPNET_MIRROR_ONLY", "1")
    assert cli.main(["download", "iwslt14", "--out", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}/de-en.tgz\n"
