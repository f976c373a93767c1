"""scripts/download.sh and scripts/preprocess_opus100.sh against a server on this machine."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.opus100 import multi30k_corpus, small_corpus, write_archive
from tests.support.server import Server, serving, without_proxies
from tests.support.shell import ROOT, run_script

SHARED = ROOT.parent / "shared" / "data"

ARCHIVE = "opus100/opus-100-corpus-v1.0.tar.gz"
TEXT = gzip.compress(random.Random(1).randbytes(600_000), mtime=0)
PATIENT = ("--timeout", "600")  # an answer that a busy machine delays is no failure


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = without_proxies(dict(os.environ))
    for name in set(os.environ) - set(kept):
        monkeypatch.delenv(name)


def mirror(server: Server) -> dict[str, str]:
    return {"DEEPNET_MIRROR": server.url, "DEEPNET_MIRROR_ONLY": "1"}


def test_a_download_that_was_killed_is_taken_up(server: Server, tmp_path: Path) -> None:
    served = server.add("iwslt14/de-en.tgz", TEXT)
    served.pause_at = 300_000
    out = tmp_path / "out"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **mirror(server), "OUT": str(out), "PATH": path}
    killed = subprocess.Popen(
        ["bash", str(ROOT / "scripts" / "download.sh"), "iwslt14", *PATIENT],
        env=environment | {"DEEPNET_SKIP_SETUP": "1", "OMP_NUM_THREADS": "1"},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    part = out / "de-en.tgz.part"
    # However long it takes: the server waits with the rest until it is told to go on.
    while not (part.is_file() and part.stat().st_size == 300_000):
        assert killed.poll() is None, "the script ended before the server paused"
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    served.go_on.set()
    served.pause_at = None
    assert not (out / "de-en.tgz").exists()
    left = part.stat().st_size
    run = run_script("download.sh", "iwslt14", *PATIENT, env={**mirror(server), "OUT": str(out)})
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"{out}/de-en.tgz\n"
    assert (out / "de-en.tgz").read_bytes() == TEXT
    assert server.ranges("iwslt14/de-en.tgz") == [None, f"bytes={left}-"]
    assert sorted(entry.name for entry in out.iterdir()) == ["checksums.json", "de-en.tgz"]


def test_download_needs_the_name_of_a_corpus() -> None:
    run = run_script("download.sh")
    assert run.returncode == 2
    assert run.stderr == "[download] error: which corpus? --list names them, --help says more\n"


def opus100(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    places = {
        "DOWNLOADS": str(tmp_path / "downloads"),
        "UNPACKED": str(tmp_path / "raw"),
        "OUT": str(tmp_path / "out"),
        "WORKERS": "1",
    }
    return run_script("preprocess_opus100.sh", env=places | variables)


def test_opus_100_goes_from_a_bad_server_to_a_binarised_folder(
    server: Server, tmp_path: Path
) -> None:
    """Real sentences where there are some, else generated ones; cs-en has no dev and test text."""
    real = SHARED / "multi30k"
    files = multi30k_corpus(real, 1000, 100) if real.is_dir() else small_corpus()
    archive = write_archive(tmp_path / "made.tar.gz", files).read_bytes()
    settings = {"VOCAB_SIZE": "400", "SUBWORDS": "bpe"}
    with serving() as empty:
        served = server.add(ARCHIVE, archive)
        served.drops, served.statuses = [len(archive) // 2], [503]
        settings |= mirror(server) | {"DEEPNET_MIRROR": f"{empty.url} {server.url}"}
        run = opus100(tmp_path, **settings)
    assert run.returncode == 0, run.stderr
    assert server.ranges(ARCHIVE) == [None, None, f"bytes={len(archive) // 2}-"]
    assert " test sentences (3 pairs, both sides) are also in the training text" in run.stderr
    made = {"made.tar.gz", "downloads", "raw", "out", "out.pairs.tsv", "out.overlap.json"}
    assert {path.name for path in tmp_path.iterdir()} == made
    record = json.loads((tmp_path / "out" / "corpus.json").read_text(encoding="utf-8"))
    assert record["languages"] == ["cs", "de", "en", "fr"]
    trained = ["cs-en", "de-en", "en-cs", "en-de", "en-fr", "fr-en"]
    assert sorted(record["directions"]["train"]) == trained
    assert set(record["directions"]["test"]) - set(trained) == {"de-fr", "fr-de"}
    assert (tmp_path / "out" / "valid.cs-en.cs.bin").is_file()  # held out
    assert (tmp_path / "out" / "test.de-fr.fr.idx").is_file()

    again = opus100(tmp_path, **settings)
    assert again.returncode == 0, again.stderr
    assert "nothing to do" in again.stderr
    assert len(server.ranges(ARCHIVE)) == 3


def test_opus_100_of_a_server_that_has_only_a_web_page_is_refused(
    server: Server, tmp_path: Path
) -> None:
    server.add(ARCHIVE, b"<html>moved</html>").kind = "text/html"
    run = opus100(tmp_path, **mirror(server))
    assert run.returncode == 2
    assert "sends a web page" in run.stderr.splitlines()[-1]
    assert "RAW=FOLDER" in run.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "downloads" / ARCHIVE.split("/")[1]).exists()


@pytest.mark.parametrize(
    ("variables", "cause"),
    [
        ({"LANGS": "german"}, "LANGS has 'german'"),
        ({"LANGS": "en"}, "name a language besides English"),
        ({"OVERLAP": "yes"}, "OVERLAP is 'yes'; it must be 0 or 1"),
        ({"WORKERS": "0"}, "WORKERS is '0'"),
        ({"RAW": "/nowhere"}, "there is no archive or folder RAW=/nowhere"),
    ],
)
def test_bad_variables_of_opus_100_are_refused(
    variables: dict[str, str], cause: str, tmp_path: Path
) -> None:
    run = opus100(tmp_path, **variables)
    assert run.returncode == 2
    assert run.stdout == ""
    assert len(run.stderr.splitlines()) == 1
    assert cause in run.stderr
    assert list(tmp_path.iterdir()) == []
