"""scripts/preprocess_multi30k.sh: where its text comes from, and what it does with broken text."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairseq_deepnet.tools.corpora import download
from fairseq_deepnet.tools.corpora.published import multi30k
from tests.support.server import Server, serving
from tests.support.shell import run_script

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


def preprocess(
    cwd: Path, *, server: Server | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the script; nothing can be downloaded but from `server`."""
    mirror = {"DEEPNET_MIRROR": server.url if server else "http://127.0.0.1:1"}
    env = {"OUT": "out", "DEEPNET_MIRROR_ONLY": "1", **mirror, **variables}
    return run_script("preprocess_multi30k.sh", env=env, cwd=cwd)


def prefixes(raw: Path, source: str = "de", target: str = "en", fetched: bool = False) -> list[str]:
    """Where the text of train, valid and test is."""

    def fetch(languages: tuple[str, ...]) -> Path:
        if fetched:
            download.fetch("multi30k", raw, languages)
        return raw

    return [row.prefix for row in multi30k.rows(SimpleNamespace(src=source, tgt=target), fetch)]


def test_everything_is_downloaded_once(
    tmp_path: Path, server: Server, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPNET_MIRROR", server.url)
    monkeypatch.setenv("DEEPNET_MIRROR_ONLY", "1")
    raw = tmp_path / "downloads"
    names = sorted(path.name for path in public.iterdir())
    for _ in range(2):
        assert prefixes(raw, fetched=True) == [f"{raw}/{name}" for name in LINES]
        assert sorted(path.name for path in raw.iterdir()) == ["checksums.json", *names]
        assert sorted(path for path, _ in server.asked) == [f"/multi30k/{name}" for name in names]
    for name in names:
        assert (raw / name).read_bytes() == (public / name).read_bytes()


def test_a_missing_file_is_refused_with_the_advice_to_set_raw(
    tmp_path: Path, server: Server
) -> None:
    del server.files["/multi30k/train.en.gz"]
    run = preprocess(tmp_path, server=server, DOWNLOADS="downloads")
    assert run.returncode == 2
    assert run.stdout == ""
    for cause in ("train.en.gz", "404", "RAW="):
        assert cause in run.stderr
    assert not (tmp_path / "downloads" / "train.en.gz").exists()
    assert not list(tmp_path.glob("out*"))


def test_lines_that_are_missing_are_noticed(public: Path, tmp_path: Path) -> None:
    raw = shutil.copytree(public, tmp_path / "raw")
    (raw / "val.en.gz").write_bytes(gzip.compress(b"one\n" * 1013))
    with pytest.raises(ValueError, match=r"val\.en has 1013 lines instead of 1014"):
        prefixes(raw)


@pytest.mark.parametrize("below", [".", "data/task1/raw"])
def test_raw_takes_the_public_repository_as_it_is(public: Path, tmp_path: Path, below: str) -> None:
    raw = tmp_path / "clone"
    shutil.copytree(public, raw / below)
    assert prefixes(raw, "en", "de") == [str(raw / below / name) for name in LINES]


def test_raw_takes_plain_files_under_our_names(public: Path, tmp_path: Path) -> None:
    ours = {"train": "train", "val": "valid", "test_2016_flickr": "test"}
    raw = tmp_path / "plain"
    raw.mkdir()
    for path in public.iterdir():
        split, language, _ = path.name.split(".")
        (raw / f"{ours[split]}.{language}").write_bytes(gzip.decompress(path.read_bytes()))
    assert prefixes(raw) == [f"{raw}/{split}" for split in ("train", "valid", "test")]


@pytest.mark.parametrize(
    ("variables", "cause"),
    [
        ({"SRC": "nl"}, "no language 'nl' in Multi30k; it has de, en, fr and cs"),
        ({"RAW": "absent"}, "there is no archive or folder RAW=absent"),
        ({"RAW": "empty"}, "empty has no text of train: neither train.de nor"),
        ({"RAW": "PUBLIC", "TGT": "fr"}, "there is no PUBLIC/train.fr, plain or .gz"),
    ],
)
def test_bad_usage_is_refused(
    tmp_path: Path, public: Path, variables: dict[str, str], cause: str
) -> None:
    (tmp_path / "empty").mkdir()
    given = {key: value.replace("PUBLIC", str(public)) for key, value in variables.items()}
    run = preprocess(tmp_path, **given)
    assert run.returncode == 2, run.stderr
    assert run.stdout == ""
    (line,) = run.stderr.splitlines()
    assert line.startswith("[preprocess_multi30k] error: ")
    assert cause.replace("PUBLIC", str(public)) in line
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


@pytest.mark.needs_shared
def test_real_multi30k_is_preprocessed_whole(tmp_path: Path) -> None:
    out = tmp_path / "fr-cs"
    run = preprocess(tmp_path, RAW=str(SHARED), SRC="fr", TGT="cs", OUT=str(out), VOCAB_SIZE="1000")
    assert run.returncode == 0, run.stderr
    record = json.loads((out / "corpus.json").read_text(encoding="utf-8"))
    assert record["lines"] == {"train": 29000, "valid": 1014, "test": 1000}
    assert max(side["unknown_percent"] for side in record["binarised"].values()) < 0.01
    with gzip.open(SHARED / "test.cs.gz") as stream:
        assert (out / "text" / "test.cs").read_bytes() == stream.read()
