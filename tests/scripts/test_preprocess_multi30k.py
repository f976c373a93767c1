"""scripts/preprocess_multi30k.sh: where its text comes from, and what it does with broken text."""

from __future__ import annotations

import functools
import gzip
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data" / "multi30k"
LINES = {"train": 29000, "val": 1014, "test_2016_flickr": 1000}


class Server(ThreadingHTTPServer):
    """Serves a folder, and remembers what was asked; resumes where `resumes`."""

    asked: list[tuple[str, str | None]]
    resumes = True


class Handler(SimpleHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append((self.path.rsplit("/", 1)[-1], wanted))
        path = Path(self.translate_path(self.path))
        if not (wanted and self.server.resumes and path.is_file()):
            super().do_GET()
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        data = path.read_bytes()
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        self.wfile.write(data[start:])

    def log_message(self, *_: object) -> None:
        pass


def write_public(folder: Path, languages: tuple[str, ...] = ("de", "en")) -> Path:
    """Files with the names and line counts of the public repository."""
    folder.mkdir(parents=True)
    for name, count in LINES.items():
        for language in languages:
            text = "".join(f"{language} {number * 7919}\n" for number in range(count))
            (folder / f"{name}.{language}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    return folder


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_public(tmp_path_factory.mktemp("public") / "raw")


@pytest.fixture
def server(public: Path, tmp_path: Path) -> Iterator[Server]:
    """Serves a copy of the public files that a test may damage."""
    shutil.copytree(public, tmp_path / "served")
    handler = functools.partial(Handler, directory=str(tmp_path / "served"))
    with Server(("127.0.0.1", 0), handler) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """The script beside a preprocess.sh that only says what it was given."""
    scripts = tmp_path / "house" / "scripts"
    (scripts / "lib").mkdir(parents=True)
    for name in ("common.sh", "multi30k.sh"):
        shutil.copy(ROOT / "scripts" / "lib" / name, scripts / "lib")
    shutil.copy(ROOT / "scripts" / "preprocess_multi30k.sh", scripts)
    (scripts / "preprocess.sh").write_text('echo "$SRC|$TGT|$TRAIN|$VALID|$TEST|$OUT|$*"\n')
    return scripts.parent


def preprocess(
    house: Path, *arguments: str, server: Server | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    url = f"http://127.0.0.1:{server.server_port}" if server else "http://127.0.0.1:1"
    environment = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    environment |= {"DEEPNET_SKIP_SETUP": "1", "MULTI30K_URL": url, **variables}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        ["bash", str(house / "scripts" / "preprocess_multi30k.sh"), *arguments],
        cwd=house,
        env=environment,
        capture_output=True,
        text=True,
    )


def assert_refused(run: subprocess.CompletedProcess[str], *causes: str) -> None:
    assert run.returncode == 2, run.stderr
    assert run.stdout == ""
    last = [line for line in run.stderr.splitlines() if "downloading" not in line]
    assert len(last) == 1
    for cause in ("error: ", *causes):
        assert cause in last[0]


def test_everything_is_downloaded_once(house: Path, server: Server, public: Path) -> None:
    raw = house / "data" / "multi30k.raw"
    names = sorted(path.name for path in public.iterdir())
    for _ in range(2):
        run = preprocess(house, "--workers", "3", server=server)
        assert run.returncode == 0, run.stderr
        prefixes = "|".join(f"{raw}/{name}" for name in LINES)
        assert run.stdout == f"de|en|{prefixes}|{house}/data/multi30k.de-en|--workers 3\n"
        assert sorted(path.name for path in raw.iterdir()) == names
        assert sorted(name for name, _ in server.asked) == names
    for name in names:
        assert (raw / name).read_bytes() == (public / name).read_bytes()


@pytest.mark.parametrize("resumes", [True, False])
@pytest.mark.parametrize("begun", [b"", b"half", b"all", b"other"])
def test_what_an_interrupted_download_left_is_taken_up_or_replaced(
    house: Path, server: Server, public: Path, begun: bytes, resumes: bool
) -> None:
    server.resumes = resumes
    raw = house / "data" / "multi30k.raw"
    raw.mkdir(parents=True)
    whole = (public / "train.de.gz").read_bytes()
    left = {b"half": whole[: len(whole) // 2], b"all": whole, b"other": b"<html>"}.get(begun, b"")
    (raw / "train.de.gz.part").write_bytes(left)
    run = preprocess(house, server=server)
    assert run.returncode == 0, run.stderr
    assert (raw / "train.de.gz").read_bytes() == whole
    assert not list(raw.glob("*.part"))
    asked = [wanted for name, wanted in server.asked if name == "train.de.gz"]
    if begun == b"half" and resumes:
        assert asked == [f"bytes={len(left)}-"]
    if begun == b"all":
        assert asked == []


def test_a_truncated_file_is_refused_and_not_kept(
    house: Path, server: Server, tmp_path: Path
) -> None:
    served = tmp_path / "served" / "val.de.gz"
    served.write_bytes(served.read_bytes()[:-9])
    run = preprocess(house, server=server)
    assert_refused(run, "val.de.gz is not a whole gzip file", "RAW=")
    names = {path.name for path in (house / "data" / "multi30k.raw").iterdir()}
    assert names == {"train.de.gz", "train.en.gz"}


def test_a_missing_file_is_refused_and_leaves_no_error_page(
    house: Path, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "served" / "train.en.gz").unlink()
    run = preprocess(house, server=server)
    assert_refused(run, "train.en.gz", "404", "RAW=")
    names = {path.name for path in (house / "data" / "multi30k.raw").iterdir()}
    assert names == {"train.de.gz"}


def test_without_a_connection_the_advice_is_to_set_raw(house: Path) -> None:
    run = preprocess(house)
    assert_refused(run, "cannot download", "multi30k/dataset", "RAW=")
    assert not (house / "data" / "multi30k.raw").exists()


def test_lines_that_are_missing_are_noticed(house: Path, server: Server, tmp_path: Path) -> None:
    (tmp_path / "served" / "val.en.gz").write_bytes(gzip.compress(b"one\n" * 1013))
    run = preprocess(house, server=server)
    assert_refused(run, "val.en has 1013 lines instead of 1014")


@pytest.mark.parametrize("below", [".", "data/task1/raw"])
def test_raw_takes_the_public_repository_as_it_is(
    house: Path, public: Path, tmp_path: Path, below: str
) -> None:
    (tmp_path / "clone").mkdir()
    if below != ".":
        shutil.copytree(public, tmp_path / "clone" / below)
    raw = public if below == "." else tmp_path / "clone"
    run = preprocess(house, RAW=str(raw), SRC="en", TGT="de", OUT="mine")
    assert run.returncode == 0, run.stderr
    prefixes = "|".join(str(raw / below / name) for name in LINES)
    assert run.stdout.replace("/./", "/") == f"en|de|{prefixes}|mine|\n".replace("/./", "/")


def test_raw_takes_plain_files_under_our_names(house: Path, public: Path, tmp_path: Path) -> None:
    ours = {"train": "train", "val": "valid", "test_2016_flickr": "test"}
    raw = tmp_path / "plain"
    raw.mkdir()
    for path in public.iterdir():
        split, language, _ = path.name.split(".")
        (raw / f"{ours[split]}.{language}").write_bytes(gzip.decompress(path.read_bytes()))
    run = preprocess(house, RAW=str(raw))
    assert run.returncode == 0, run.stderr
    assert f"{raw}/train|{raw}/valid|{raw}/test|" in run.stdout


@pytest.mark.parametrize(
    ("variables", "cause"),
    [
        ({"SRC": "nl"}, "no language 'nl' in Multi30k; it has de, en, fr and cs"),
        ({"RAW": "absent"}, "RAW=absent is not a folder"),
        ({"RAW": "scripts"}, "scripts has no train.de, nor train.de"),
        ({"RAW": "PUBLIC", "TGT": "fr"}, "there is no PUBLIC/train.fr, plain or .gz"),
    ],
)
def test_bad_usage_is_refused(
    house: Path, public: Path, variables: dict[str, str], cause: str
) -> None:
    given = {key: value.replace("PUBLIC", str(public)) for key, value in variables.items()}
    assert_refused(preprocess(house, **given), cause.replace("PUBLIC", str(public)))
    assert not (house / "data").exists()


def test_help_names_every_variable(house: Path) -> None:
    run = preprocess(house, "--help")
    assert run.returncode == 0
    for name in ("RAW", "SRC", "OUT", "DOWNLOADS", "MULTI30K_URL"):
        assert name in run.stdout


@pytest.mark.needs_shared
def test_real_multi30k_is_preprocessed_whole(tmp_path: Path) -> None:
    out = tmp_path / "fr-cs"
    run = preprocess(ROOT, RAW=str(SHARED), SRC="fr", TGT="cs", OUT=str(out), VOCAB_SIZE="1000")
    assert run.returncode == 0, run.stderr
    record = json.loads((out / "corpus.json").read_text())
    assert record["lines"] == {"train": 29000, "valid": 1014, "test": 1000}
    assert max(side["unknown_percent"] for side in record["binarised"].values()) < 0.01
    with gzip.open(SHARED / "test.cs.gz") as stream:
        assert (out / "text" / "test.cs").read_bytes() == stream.read()
