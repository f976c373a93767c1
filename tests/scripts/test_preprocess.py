"""scripts/preprocess.sh: real runs on small text, interrupted runs, and what it refuses."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset

from fairseq_deepnet.tools.corpora.subwords import decode_line, load_model
from fairseq_deepnet.tools.corpora.text import normalise, read_lines

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "preprocess.sh"
ODD = [
    "la  <unk> hundo",
    "a < b > c / s ",
    "a\u2028b\x85c",
    "cafe\u0301 ▁ <s>",
    "\u00a0tab\there",
    "x\x0b</s>\x0cy",
]
TRAIN_LINES, VALID_LINES, TEST_LINES = 206, 7, 6


def preprocess(cwd: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "DEEPNET_SKIP_SETUP": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        **variables,
    }
    command = ["bash", str(SCRIPT), *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, encoding="utf-8")


def errors(run: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in run.stderr.splitlines() if "error:" in line]


def write_raw(folder: Path) -> None:
    rng = random.Random(3)
    syllables = ["do", "mo", "ka", "to", "lib", "ro", "gran", "da", "be", "la", "ku", "manĝ"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(80)]
    folder.mkdir()
    for split, count in {"train": 200, "valid": VALID_LINES - len(ODD), "test": 0}.items():
        lines = [" ".join(rng.choices(words, k=rng.randint(3, 9))) for _ in range(count)] + ODD
        text = "".join(f"{line}\n" for line in lines)
        (folder / f"{split}.eo").write_bytes(text.encode())
        (folder / f"{split}.ia.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + text.encode()))
    with (folder / "train.eo").open("ab") as eo:
        eo.write(b"one\r\n\n")
    (folder / "train.ia.gz").write_bytes(
        gzip.compress(gzip.decompress((folder / "train.ia.gz").read_bytes()) + b"one\n\n")
    )


class Made:
    """A data folder and everything that was seen on the way to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "a folder" / "made.eo-ia"
        self.part = self.out.with_name("made.eo-ia.part")
        self.variables = {
            **{"SRC": "eo", "TGT": "ia", "VOCAB_SIZE": "200", "WORKERS": "2"},
            **{"TRAIN": "raw/train", "VALID": "raw/valid", "TEST": "raw/test"},
            "OUT": str(self.out),
        }
        write_raw(folder / "raw")

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return preprocess(self.folder, *arguments, **{**self.variables, **variables})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Refused for an option without effect, and then made."""
    corpus = Made(tmp_path_factory.mktemp("preprocess"))
    failed = corpus.run("--padding-factor")
    assert failed.returncode == 2
    assert errors(failed) == failed.stderr.splitlines()
    assert (
        "unexpected argument --padding-factor; sentencepiece makes the dictionary" in failed.stderr
    )
    assert not corpus.out.parent.exists()

    done = corpus.run()
    assert done.returncode == 0, done.stderr
    assert f"{TRAIN_LINES + 1} train, {VALID_LINES} valid, {TEST_LINES} test lines" in done.stderr
    return corpus


def test_the_folder_holds_what_training_needs_and_nothing_of_the_making(made: Made) -> None:
    names = {path.name for path in made.out.iterdir()}
    binarised = {
        f"{split}.eo-ia.{language}.{ending}"
        for split in ("train", "valid", "test")
        for language in ("eo", "ia")
        for ending in ("bin", "idx")
    }
    others = {"dict.eo.txt", "dict.ia.txt", "spm.model", "spm.vocab"}
    assert names == binarised | others | {"text", "corpus.json"}
    assert {path.name for path in made.folder.iterdir()} == {
        *("raw", "a folder")  # nothing left where the script was started
    }
    assert [path.name for path in made.out.parent.iterdir()] == [made.out.name]


def test_corpus_json_states_lines_settings_and_inputs(made: Made) -> None:
    record = json.loads((made.out / "corpus.json").read_text(encoding="utf-8"))
    assert record["lines"] == {
        "train": TRAIN_LINES + 1,
        "valid": VALID_LINES,
        "test": TEST_LINES,
    }
    assert record["cleaning"]["train"]["dropped"] == {"empty": 1}
    stated = {key: record[key] for key in ("source", "target", "vocab_size", "subwords", "joint")}
    assert stated == {
        **{"source": "eo", "target": "ia", "vocab_size": 200},
        **{"subwords": "bpe", "joint": True},
    }
    assert set(record["inputs"]) == {
        f"{split}.{language}" for split in ("train", "valid", "test") for language in ("eo", "ia")
    }
    assert record["binarised"]["train.eo"]["unknown_percent"] == 0


def test_valid_and_test_text_is_exactly_the_input(made: Made) -> None:
    for split in ("valid", "test"):
        raw = (made.folder / "raw" / f"{split}.eo").read_bytes()
        assert (made.out / "text" / f"{split}.eo").read_bytes() == raw
        assert (made.out / "text" / f"{split}.ia").read_bytes() == raw  # less the byte-order mark


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_what_fairseq_reads_decodes_to_the_text(made: Made, split: str) -> None:
    model = load_model(made.out / "spm.model")
    dictionary = Dictionary.load(str(made.out / "dict.ia.txt"))
    data = MMapIndexedDataset(str(made.out / f"{split}.eo-ia.ia"))
    decoded = [decode_line(model, dictionary.string(tokens)) for tokens in data]
    text = [
        " ".join(normalise(line).split()) for line in read_lines(made.out / "text" / f"{split}.ia")
    ]
    assert decoded == text


def test_fairseq_ids_follow_sentencepiece(made: Made) -> None:
    model = load_model(made.out / "spm.model")
    data = MMapIndexedDataset(str(made.out / "test.eo-ia.eo"))
    line = normalise(ODD[0])
    assert data[0].tolist() == [index + 1 for index in model.encode(line)] + [2]  # </s>
    dictionaries = [
        (made.out / f"dict.{language}.txt").read_text(encoding="utf-8") for language in ("eo", "ia")
    ]
    assert dictionaries[0] == dictionaries[1]


def test_a_second_run_has_nothing_to_do_also_without_the_raw_text(made: Made) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.out.rglob("*")}
    raw = made.folder / "raw"
    for place in (raw, raw.with_name("gone")):  # text that is gone since is no other text
        if place != raw:
            raw.rename(place)
        again = made.run()
        assert again.returncode == 0, again.stderr
        assert again.stderr.endswith("is complete: nothing to do\n")
    place.rename(raw)
    assert {path: path.stat().st_mtime_ns for path in made.out.rglob("*")} == before
    assert not made.part.exists()


def test_what_a_run_that_was_killed_in_its_last_moment_left_is_cleared_away(made: Made) -> None:
    (made.part / "text").mkdir(parents=True)
    (made.part / "plan.json").write_text("{}", encoding="utf-8")
    again = made.run()
    assert again.returncode == 0
    assert again.stderr.endswith("is complete: nothing to do\n")
    assert [path.name for path in made.out.parent.iterdir()] == [made.out.name]


def test_changed_knobs_and_inputs_are_refused(made: Made) -> None:
    for language in ("eo", "ia"):
        (made.folder / "a folder" / f"other.{language}").write_text("another\n", encoding="utf-8")
    for variables, cause in [
        ({"VOCAB_SIZE": "150"}, "vocab_size was 200, now 150"),
        ({"SUBWORDS": "unigram", "JOINT": "0"}, "joint was True, now False; subwords was 'bpe'"),
        ({"TEST": "a folder/other"}, "input test.eo changed"),
    ]:
        run = made.run(**variables)
        assert run.returncode == 2
        assert len(errors(run)) == 1
        assert cause in errors(run)[0]
        assert "FORCE=1" in errors(run)[0]
    assert not made.part.exists()
    for language in ("eo", "ia"):
        (made.folder / "a folder" / f"other.{language}").unlink()


def test_two_runs_cannot_make_the_same_folder(made: Made, tmp_path: Path) -> None:
    lock = tmp_path / "out.lock"
    with lock.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        run = made.run(OUT=str(tmp_path / "out"), TRAIN="gone/train")
    assert run.returncode == 2
    assert "another run is making" in run.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out.lock"]


@pytest.mark.parametrize("forced", ["0", "1"])
def test_a_folder_that_is_no_data_folder_is_never_touched(made: Made, forced: str) -> None:
    precious = made.folder / "raw"
    before = sorted(path.name for path in precious.iterdir())
    run = made.run(OUT=str(precious), FORCE=forced)
    assert run.returncode == 2
    assert "exists but has no corpus.json" in errors(run)[0]
    assert sorted(path.name for path in precious.iterdir()) == before


def assert_refused(corpus: Made, cause: str) -> None:
    run = corpus.run()
    assert run.returncode == 2
    assert len(errors(run)) == 1
    assert cause in errors(run)[0]
    assert "Traceback" not in run.stderr
    assert run.stdout == ""
    assert not list(corpus.out.parent.iterdir())


def test_bad_text_is_one_line_of_error_and_leaves_nothing(tmp_path: Path) -> None:
    corpus = Made(tmp_path)
    (tmp_path / "raw" / "test.eo").write_bytes(b"Stra\xdfe\n" * TEST_LINES)
    assert_refused(corpus, "test.eo, line 1: not valid UTF-8")


def test_half_a_gzip_file_is_one_line_of_error_and_leaves_nothing(tmp_path: Path) -> None:
    corpus = Made(tmp_path)
    packed = tmp_path / "raw" / "train.ia.gz"
    packed.write_bytes(packed.read_bytes()[:-30])
    assert_refused(corpus, "train.ia.gz cannot be read whole")


def test_a_missing_language_is_one_line_of_error_and_leaves_nothing(tmp_path: Path) -> None:
    corpus = Made(tmp_path)
    (tmp_path / "raw" / "test.ia.gz").unlink()
    assert_refused(corpus, "no ia side of raw/test: neither raw/test.ia nor raw/test.ia.gz")


def test_a_vocabulary_that_is_too_large_names_the_largest_and_only_text_stays(made: Made) -> None:
    out = made.folder / "a folder" / "large"
    run = made.run(OUT=str(out), VOCAB_SIZE="7000")
    assert run.returncode == 2
    assert "the largest possible is" in errors(run)[0]
    assert not out.exists()
    part = out.with_name("large.part")
    assert {path.name for path in part.iterdir()} == {"plan.json", "text"}

    # Separate models without a test set, in the same place: what was begun is for something else.
    run = made.run(OUT=str(out), VOCAB_SIZE="60", JOINT="0", TEST="")
    assert run.returncode == 0, run.stderr
    assert "done before" not in run.stderr
    record = json.loads((out / "corpus.json").read_text(encoding="utf-8"))
    assert record["lines"] == {"train": TRAIN_LINES + 1, "valid": VALID_LINES}
    assert (out / "spm.eo.model").exists()
    assert (out / "spm.ia.model").exists()
    shutil.rmtree(out)


@pytest.mark.parametrize(
    ("variables", "arguments", "cause"),
    [
        ({"SRC": ""}, [], "SRC is not set"),
        ({"VALID": ""}, [], "VALID is not set"),
        ({"TGT": "eo"}, [], "SRC and TGT are both 'eo'"),
        ({"SRC": "../eo"}, [], "must be a language code"),
        ({"VOCAB_SIZE": "8k"}, [], "VOCAB_SIZE is '8k'"),
        ({"WORKERS": "0"}, [], "WORKERS is '0'"),
        ({"MAX_RATIO": "-1"}, [], "MAX_RATIO is '-1'"),
        ({"JOINT": "yes"}, [], "JOINT is 'yes'; it must be 0 or 1"),
        ({"SUBWORDS": "words"}, [], "must be bpe or unigram"),
        ({}, ["--joined-dictionary"], "unexpected argument --joined-dictionary"),
        ({}, ["--dataset-impl=raw"], "unexpected argument --dataset-impl=raw"),
        (
            {},
            ["--nwordssrc", "all"],
            "unexpected argument --nwordssrc; sentencepiece makes the dictionary",
        ),
    ],
)
def test_bad_usage_is_refused_at_once(
    tmp_path: Path, variables: dict[str, str], arguments: list[str], cause: str
) -> None:
    given = {"SRC": "eo", "TGT": "ia", "TRAIN": "t", "VALID": "v", "OUT": "out", **variables}
    run = preprocess(tmp_path, *arguments, **given)
    assert run.returncode == 2
    assert len(run.stderr.splitlines()) == 1
    assert cause in run.stderr
    assert not list(tmp_path.iterdir())


def test_help_names_every_variable(tmp_path: Path) -> None:
    run = preprocess(tmp_path, "--help")
    assert run.returncode == 0
    for name in ("SRC", "TRAIN", "OUT", "VOCAB_SIZE", "JOINT", "BYTE_FALLBACK", "FORCE", "WORKERS"):
        assert name in run.stdout
