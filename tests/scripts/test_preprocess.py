"""scripts/preprocess.sh: real runs on small text, interrupted runs, and what it refuses."""

from __future__ import annotations

import gzip
import os
import random
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
    corpus = Made(tmp_path_factory.mktemp("preprocess"))
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
