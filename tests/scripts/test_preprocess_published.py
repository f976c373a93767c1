"""scripts/preprocess_{iwslt14,wmt17,moses}.sh: from archives on a server to binarised data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fairseq.data.indexed_dataset import MMapIndexedDataset

from fairseq_deepnet import cli
from fairseq_deepnet.tools.corpora import builder
from fairseq_deepnet.tools.corpora.extract import MARK
from tests.support.archives import PAIRS, REAL_TALKS, pack, real_iwslt, small_iwslt, small_wmt
from tests.support.server import serving
from tests.support.shell import ROOT, run_script


def counts(folder: Path, pair: str) -> dict[str, int]:
    """Sentences of every split, after checking that both sides have as many."""
    found: dict[str, int] = {}
    for path in folder.glob(f"*.{pair}.*.idx"):
        count = len(MMapIndexedDataset(str(path.with_suffix(""))))
        assert found.setdefault(path.name.split(".")[0], count) == count
    return found


def test_iwslt14_from_archive_to_binarised_data(tmp_path: Path) -> None:
    """On the real talks where they are; on a few lines otherwise."""
    real = REAL_TALKS.is_dir()
    archive = pack(real_iwslt() if real else small_iwslt())
    out = tmp_path / "iwslt14"
    with serving() as server:
        # the first mirror has no such file, the second tells a wrong length, the third breaks off
        server.add("long/iwslt14/de-en.tgz", archive).announced = len(archive) + 1000
        server.add("good/iwslt14/de-en.tgz", archive).drops = [len(archive) // 2]
        mirrors = " ".join(f"{server.url}/{name}" for name in ("none", "long", "good"))
        env = {
            **{"DEEPNET_MIRROR": mirrors, "DEEPNET_MIRROR_ONLY": "1", "OUT": str(out)},
            **{"DOWNLOADS": str(tmp_path / "downloads"), "MERGES": "200", "WORKERS": "2"},
        }
        made = run_script("preprocess_iwslt14.sh", env=env)
    assert made.returncode == 0, made.stderr
    assert {name.split("/")[1] for name, _ in server.asked} == {"none", "long", "good"}
    assert not list(tmp_path.glob("iwslt14.*"))
    record = json.loads((out / "corpus.json").read_text(encoding="utf-8"))
    expected = {"train": 6327, "valid": 287, "test": 6750}
    if not real:
        # per talk seven lines, of which the ratio drops one; every 23rd is held out
        expected = {"train": record["lines"]["train"], "valid": record["lines"]["valid"]}
        assert sum(expected.values()) == 12 * 7 - sum(
            record["cleaning"]["train"]["dropped"].values()
        )
        expected["test"] = 25
    assert record["lines"] == expected
    assert counts(out, "de-en") == expected
    assert record["tokenisation"] == "moses"
    assert record["lowercase"] is True
    assert record["joint"] is False
    assert (out / "dict.de.txt").read_text(encoding="utf-8") != (out / "dict.en.txt").read_text(
        encoding="utf-8"
    )
    tokens = (out / "tokenised" / "test.en").read_text(encoding="utf-8").split("\n")
    text = (out / "text" / "test.en").read_text(encoding="utf-8").split("\n")
    assert len(tokens) == len(text) == expected["test"] + 1
    assert tokens != text
    assert "".join(tokens).lower() == "".join(tokens)

    again = run_script("preprocess_iwslt14.sh", env={**env, "DEEPNET_MIRROR": "http://127.0.0.1:9"})
    assert again.returncode == 0
    assert again.stderr.endswith("is complete: nothing to do\n")
    other = run_script("preprocess_iwslt14.sh", env={**env, "MERGES": "300"})
    assert other.returncode == 2
    assert "merges was 200, now 300" in other.stderr


def test_wmt17_from_archives_to_binarised_data(tmp_path: Path) -> None:
    out = tmp_path / "wmt17"
    with serving() as server:
        for name, content in small_wmt().items():
            server.add(f"wmt17/{name}", content)
        env = {
            **{"DEEPNET_MIRROR": server.url, "DEEPNET_MIRROR_ONLY": "1", "OUT": str(out)},
            **{"DOWNLOADS": str(tmp_path / "downloads"), "VOCAB_SIZE": "100", "WORKERS": "2"},
        }
        made = run_script("preprocess_wmt17.sh", env=env)
    assert made.returncode == 0, made.stderr
    assert "europarl-v7 has 203 pairs, the published one 1,920,209" in made.stderr
    record = json.loads((out / "corpus.json").read_text(encoding="utf-8"))
    # of europarl's three odd pairs the empty one goes
    expected = {"train": 40 * 5 + 2 + 40 * 5 + 5, "valid": 3, "test": 4, "test1": 5}
    assert record["lines"] == expected
    assert counts(out, "en-de") == expected
    assert record["cleaning"]["train"]["dropped"] == {"empty": 1}
    assert (out / "text" / "test1.de").read_text(encoding="utf-8").split("\n")[:5] == [
        pair[0] for pair in PAIRS
    ]


def test_another_archive_is_not_taken_for_the_one_that_the_folder_was_made_of(
    tmp_path: Path,
) -> None:
    first, second, out = tmp_path / "first.tgz", tmp_path / "second.tgz", tmp_path / "iwslt14"
    content = small_iwslt()
    first.write_bytes(pack(content))
    train = next(name for name in content if "train.tags" in name and name.endswith(".en"))
    second.write_bytes(pack({**content, train: content[train].replace(" dog", " cat")}))
    env = {"OUT": str(out), "MERGES": "200", "WORKERS": "2"}
    for archive in (first, first):
        made = run_script("preprocess_iwslt14.sh", env={**env, "RAW": str(archive)})
        assert made.returncode == 0, made.stderr
    assert made.stderr.endswith("is complete: nothing to do\n")
    other = run_script("preprocess_iwslt14.sh", env={**env, "RAW": str(second)})
    assert other.returncode == 2
    assert "was made with other settings or inputs (input train.en changed)" in other.stderr
    without = run_script("preprocess_iwslt14.sh", env={**env, "DEEPNET_MIRROR_ONLY": "1"})
    assert without.stderr.endswith("is complete: nothing to do\n")


@pytest.mark.parametrize(
    ("script", "env", "cause"),
    [
        ("preprocess_iwslt14.sh", {"VARIANT": "raw"}, "VARIANT is 'raw'"),
        ("preprocess_iwslt14.sh", {"SRC": "fr"}, "they must be de and en"),
        ("preprocess_iwslt14.sh", {"RAW": "gone.tgz"}, "no archive or folder RAW=gone.tgz"),
        ("preprocess_iwslt14.sh", {"MERGES": "many"}, "MERGES is 'many'"),
        ("preprocess_wmt17.sh", {"SRC": "de", "TGT": "en"}, "this recipe is en to de"),
        ("preprocess_wmt17.sh", {"VOCAB_SIZE": "32k"}, "VOCAB_SIZE is '32k'"),
        ("preprocess_opus100.sh", {"MAX_RATIO": "a"}, "MAX_RATIO is 'a'"),
        ("preprocess_wmt17.sh", {"VARIANT": "bpe"}, "VARIANT is 'bpe'"),
        ("preprocess_moses.sh", {"SRC": "de", "TGT": "en"}, "TRAIN is not set"),
        (
            "preprocess_moses.sh",
            {"SRC": "de", "TGT": "en", "TRAIN": "t"},
            "set VALID=PREFIX, or HOLD_OUT=N",
        ),
        (
            "preprocess_moses.sh",
            {"SRC": "de", "TGT": "en", "TRAIN": "t", "HOLD_OUT": "1"},
            "HOLD_OUT is '1'",
        ),
    ],
)
def test_bad_usage_is_one_line(
    tmp_path: Path, script: str, env: dict[str, str], cause: str
) -> None:
    run = run_script(script, env={"OUT": str(tmp_path / "out"), **env})
    assert run.returncode == 2
    assert len(run.stderr.splitlines()) == 1
    assert cause in run.stderr
    assert not list(tmp_path.iterdir())


def test_only_raw_text_that_was_extracted_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raw").mkdir()
    for name, content in small_wmt(repeats=2).items():
        (tmp_path / "raw" / name).write_bytes(content)
    words = ["preprocess", "wmt17", "--raw", str(tmp_path / "raw"), "--vocab-size", "80"]
    words += ["--out", str(tmp_path / "out"), "--workers", "1"]
    assert cli.main(words) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "raw"]
    (tmp_path / "out.raw").mkdir()
    (tmp_path / "out.raw" / "mine.txt").touch()
    assert cli.main(words) == 2
    assert (tmp_path / "out.raw" / "mine.txt").is_file()
    # of another run, which makes the folder anew
    monkeypatch.setattr(builder, "_WAIT", 0)
    (tmp_path / "out.raw" / MARK).touch()
    with builder.held(tmp_path / "out"):
        assert cli.main(words) == 2
    assert (tmp_path / "out.raw" / "mine.txt").is_file()


def kill_in_stage(script: str, stage: str, out: Path, env: dict[str, str]) -> str:
    """Start a script in a group of its own and kill all of it with -9 within a stage."""
    part = out.with_name(f"{out.name}.part")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "DEEPNET_SKIP_SETUP": "1", "PATH": path, "OUT": str(out), **env}
    with (
        (out.parent / f"{out.name}.{stage}.log").open("w+", encoding="utf-8") as log,
        subprocess.Popen(
            ["bash", str(ROOT / "scripts" / script)],
            env=environment,
            stderr=log,
            start_new_session=True,
        ) as process,
    ):
        deadline = time.monotonic() + 300
        while not (part / f"{stage}.part").exists():
            assert process.poll() is None, Path(log.name).read_text(encoding="utf-8")
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.seek(0)
        return log.read()


def content(folder: Path) -> dict[str, bytes]:
    """All that is the same whenever and wherever a folder is made."""
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "corpus.json"
    }
    record = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
    del record["made"], record["sha256"]
    return files | {"corpus.json": json.dumps(record).encode()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "stages"),
    [
        ("preprocess_moses.sh", ["tokenised", "codes", "encoded", "binarised"]),
        ("preprocess.sh", ["text", "subwords", "binarised"]),
    ],
)
def test_killed_with_9_in_every_stage_and_run_again_gives_the_same_folder(
    tmp_path: Path, script: str, stages: list[str]
) -> None:
    (tmp_path / "raw").mkdir()
    for side, language in enumerate(("de", "en")):
        lines = [f"{pair[side]} {n % 97}\n" for n in range(6000) for pair in PAIRS]
        (tmp_path / "raw" / f"train.{language}").write_text("".join(lines), encoding="utf-8")
        (tmp_path / "raw" / f"test.{language}").write_text("".join(lines[:50]), encoding="utf-8")
    raw = {
        name: str(tmp_path / "raw" / split)
        for name, split in (("TRAIN", "train"), ("TEST", "test"))
    }
    env = {"SRC": "de", "TGT": "en", "WORKERS": "2", **raw}
    if script == "preprocess_moses.sh":
        env |= {"HOLD_OUT": "23", "MERGES": "300"}
    else:
        env |= {"VALID": raw["TEST"], "VOCAB_SIZE": "300"}
    whole = run_script(script, env={**env, "OUT": str(tmp_path / "whole")})
    assert whole.returncode == 0, whole.stderr

    out = tmp_path / "killed"
    for done, stage in enumerate(stages):
        log = kill_in_stage(script, stage, out, env)
        assert log.count("done before") == max(0, done - 1)
        assert not out.exists()
    last = run_script(script, env={**env, "OUT": str(out)})
    assert last.returncode == 0, last.stderr
    assert last.stderr.count("done before") == len(stages) - 1
    assert content(out) == content(tmp_path / "whole")
    assert not out.with_name("killed.part").exists()
