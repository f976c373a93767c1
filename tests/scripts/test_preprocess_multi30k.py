"""scripts/preprocess_multi30k.sh: where its text comes from, and what it does with broken text."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import Server, serving

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data" / "multi30k"
LINES = {"train": 29000, "val": 1014, "test_2016_flickr": 1000}


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
def server(public: Path) -> Iterator[Server]:
    """Serves the public files, as a mirror does."""
    with serving() as server:
        for path in public.iterdir():
            server.add(f"multi30k/{path.name}", path.read_bytes())
        yield server


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """The script beside a preprocess.sh that only says what it was given."""
    scripts = tmp_path / "house" / "scripts"
    (scripts / "lib").mkdir(parents=True)
    for name in ("common.sh", "multi30k.sh"):
        shutil.copy(ROOT / "scripts" / "lib" / name, scripts / "lib")
    for name in ("preprocess_multi30k.sh", "download.sh"):
        shutil.copy(ROOT / "scripts" / name, scripts)
    (scripts / "preprocess.sh").write_text(
        'echo "$SRC|$TGT|$TRAIN|$VALID|$TEST|$OUT|$*"\n', encoding="utf-8"
    )
    return scripts.parent


def preprocess(
    house: Path, *arguments: str, server: Server | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    url = server.url if server else "http://127.0.0.1:1"
    environment = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    environment |= {"DEEPNET_SKIP_SETUP": "1", "DEEPNET_MIRROR": url, "DEEPNET_MIRROR_ONLY": "1"}
    environment |= variables
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        ["bash", str(house / "scripts" / "preprocess_multi30k.sh"), *arguments],
        cwd=house,
        env=environment,
        capture_output=True,
        encoding="utf-8",
    )


def assert_refused(run: subprocess.CompletedProcess[str], *causes: str) -> None:
    assert run.returncode == 2, run.stderr
    assert run.stdout == ""
    last = [line for line in run.stderr.splitlines() if "downloading" not in line]
    assert len(last) == 1
    for cause in ("error: ", *causes):
        assert cause in last[0]


def test_everything_is_downloaded_once(house: Path, server: Server, public: Path) -> None:
    raw = house / "data" / "downloads" / "multi30k"
    names = sorted(path.name for path in public.iterdir())
    for _ in range(2):
        run = preprocess(house, "--workers", "3", server=server)
        assert run.returncode == 0, run.stderr
        prefixes = "|".join(f"{raw}/{name}" for name in LINES)
        assert run.stdout == f"de|en|{prefixes}|{house}/data/multi30k.de-en|--workers 3\n"
        assert sorted(path.name for path in raw.iterdir()) == ["checksums.json", *names]
        assert sorted(path for path, _ in server.asked) == [f"/multi30k/{name}" for name in names]
    for name in names:
        assert (raw / name).read_bytes() == (public / name).read_bytes()


def test_a_missing_file_is_refused_with_the_advice_to_set_raw(house: Path, server: Server) -> None:
    del server.files["/multi30k/train.en.gz"]
    run = preprocess(house, server=server)
    assert run.returncode == 2
    assert run.stdout == ""
    for cause in ("train.en.gz", "404", "RAW="):
        assert cause in run.stderr
    assert not (house / "data" / "downloads" / "multi30k" / "train.en.gz").exists()


def test_lines_that_are_missing_are_noticed(house: Path, server: Server) -> None:
    server.add("multi30k/val.en.gz", gzip.compress(b"one\n" * 1013))
    run = preprocess(house, server=server)
    assert run.returncode == 2
    assert "val.en has 1013 lines instead of 1014" in run.stderr


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
        ({"RAW": "scripts"}, "scripts has no text of train: neither train.de nor"),
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
    for name in ("RAW", "SRC", "OUT", "DOWNLOADS", "DEEPNET_MIRROR"):
        assert name in run.stdout


@pytest.mark.needs_shared
def test_real_multi30k_is_preprocessed_whole(tmp_path: Path) -> None:
    out = tmp_path / "fr-cs"
    run = preprocess(ROOT, RAW=str(SHARED), SRC="fr", TGT="cs", OUT=str(out), VOCAB_SIZE="1000")
    assert run.returncode == 0, run.stderr
    record = json.loads((out / "corpus.json").read_text(encoding="utf-8"))
    assert record["lines"] == {"train": 29000, "valid": 1014, "test": 1000}
    assert max(side["unknown_percent"] for side in record["binarised"].values()) < 0.01
    with gzip.open(SHARED / "test.cs.gz") as stream:
        assert (out / "text" / "test.cs").read_bytes() == stream.read()
