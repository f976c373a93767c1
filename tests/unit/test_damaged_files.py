"""Damaged and changed files are refused in one line."""

import json
import random
import zipfile
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch

from fairseq_deepnet.checkpoints import load_checkpoint, refuse_damaged
from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.records import read_record, sha256, write_json
from fairseq_deepnet.tools.corpora.build import folder_digests
from tests.support.runs import TINY, make_checkpoint, make_data
from tests.support.shell import Refused
from tests.support.trained import make_trained_run
from tests.support.training import train_here


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with the digests of its files, as scripts/preprocess.sh writes it."""
    folder = make_data(tmp_path / "data")
    record = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
    record["files"] = folder_digests(folder)
    write_json(folder / "corpus.json", record)
    return folder


def swap_lines(path: Path, first: int = 3, second: int = 4) -> None:
    lines = path.read_text(encoding="utf-8").split("\n")
    lines[first], lines[second] = lines[second], lines[first]
    path.write_text("\n".join(lines), encoding="utf-8")


def flip_bit(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("name", ["dict.de.txt", "spm.model"])
@pytest.mark.parametrize(
    "words",
    [("translate", "RUN", "TEXT"), ("export", "RUN", "--to=ctranslate2"), ("evaluate", "RUN")],
)
def test_a_changed_dictionary_or_subword_model_is_refused(
    name: str, words: tuple[str, ...], data: Path, tmp_path: Path, refused: Refused
) -> None:
    run = tmp_path / "run"
    make_trained_run(run, data)
    swap_lines(data / name) if name.endswith(".txt") else flip_bit(data / name, 100)
    places = {"RUN": run, "TEXT": data / "text" / "test.de"}
    line = refused(*(places.get(word, word) for word in words))
    assert f"{name} differs from the file recorded in" in line
    assert not (run / "export").exists()


def test_a_run_is_refused_with_another_dictionary(
    data: Path, tmp_path: Path, refused: Refused
) -> None:
    run = tmp_path / "run"
    make_trained_run(run, data)
    digests = {path.name: sha256(path) for path in data.glob("dict*.txt")}
    write_json(run / "environment.json", {"data": {"dictionaries_sha256": digests}})
    swap_lines(data / "dict.en.txt")
    (data / "corpus.json").write_text('{"source": "de", "target": "en"}', encoding="utf-8")
    line = refused("translate", run, data / "text" / "test.de")
    assert "dict.en.txt differs from the file recorded in" in line
    assert "environment.json (SHA-256" in line
    assert "...): select the recorded data, or copy it again" in line


def test_checksums_reveal_a_flipped_bit_in_a_weight(tmp_path: Path, refused: Refused) -> None:
    paths = [make_checkpoint(tmp_path / f"{number}.pt", number) for number in (1, 2)]
    (place,) = [
        index
        for index in range(paths[0].stat().st_size)
        if paths[0].read_bytes()[index : index + 8] == np.float32([1, 1]).tobytes()
    ][:1]
    flip_bit(paths[0], place)
    # mapped without verification
    assert float(load_checkpoint(paths[0])["model"]["weight"][0]) != 1
    with pytest.raises(ConfigurationError, match="wrong checksum"):
        load_checkpoint(paths[0], entire=True)
    refuse_damaged(paths[0], weights=False)
    assert "1.pt is damaged" in refused("average", *paths, f"--out={tmp_path}/mean.pt")
    assert not (tmp_path / "mean.pt").exists()


def test_a_damaged_checkpoint_causes_one_line_or_unchanged_weights(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "one.pt", 5)
    whole, expected = path.read_bytes(), load_checkpoint(path)["model"]["weight"].clone()
    rng = random.Random(1)
    for trial in range(150):
        content = bytearray(whole)
        if trial % 3:
            bit = rng.randrange(8 * len(whole))
            content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content if trial % 3 else whole[: rng.randrange(len(whole))])
        try:
            weight = load_checkpoint(path, entire=True)["model"]["weight"]
        except ValueError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            assert torch.equal(weight, expected)


def test_plain_training_and_translation_refuse_other_dictionaries_and_language_tokens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from fairseq import checkpoint_utils, tasks

    from fairseq_deepnet.tools import fairseq_options

    data, save_dir = make_data(tmp_path / "data"), tmp_path / "checkpoints"
    options = ["--arch=deepnet_transformer", *TINY, "--optimizer=adam", "--lr=0.01", "--cpu"]
    options += ["--source-lang=de", "--target-lang=en", "--disable-validation"]
    state = train_here(data, save_dir, *options, "--max-update=1")
    assert set(state["cfg"]["model"].dictionary_record) == {"source", "target"}
    last = str(save_dir / "checkpoint_last.pt")
    config = fairseq_options.parse_generation([str(data), "--path", last])
    task = tasks.setup_task(config.task)
    task.args = Namespace(langtoks={"main": ("tgt", None)})
    checkpoint_utils.load_model_ensemble([last], {"langtoks": None, "encoder_langtok": "tgt"}, task)
    with pytest.raises(ConfigurationError, match="--decoder-langtok, not --encoder"):
        checkpoint_utils.load_model_ensemble([last], {"langtoks": {"main": (None, "tgt")}}, task)
    swap_lines(data / "dict.de.txt")
    with pytest.raises(ConfigurationError, match="another source dictionary; use"):
        train_here(data, save_dir, *options, "--max-update=2")
    with pytest.raises(ConfigurationError, match="the source dictionary is not the one"):
        checkpoint_utils.load_model_ensemble([last], task=tasks.setup_task(config.task))
    tuned = [*options, f"--finetune-from-model={last}", "--max-update=1"]
    train_here(data, tmp_path / "tuned", *tuned)
    assert "another source dictionary: its embeddings now belong to other words" in caplog.text
    with pytest.raises(ConfigurationError, match="input-output-embed off, not on"):
        train_here(data, tmp_path / "tied", *tuned, "--share-decoder-input-output-embed")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('{"source": "de", "lines": 4', "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "it is not a JSON object"),
        ("{}", "'source' is missing or of another type"),
        ('{"source": "de", "lines": "4"}', "'lines' is missing or of another type"),
    ],
)
def test_an_incomplete_record_is_refused_in_one_line(
    content: str, fault: str, tmp_path: Path
) -> None:
    path, required = tmp_path / "record.json", {"source": str, "lines": int}
    write_json(path, {"source": "de", "lines": 4, "2": {"10": None}})
    assert read_record(path, required)["lines"] == 4
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"^\S*record\.json is damaged: ") as refused:
        read_record(path, required, "remove it")
    assert fault in str(refused.value)
    assert str(refused.value).endswith("; remove it")


def test_a_compressed_checkpoint_is_refused_unread(tmp_path: Path) -> None:
    """torch.load decompresses such records, whose size may be a thousand times the file's."""
    whole, packed = tmp_path / "whole.pt", tmp_path / "packed.pt"
    torch.save({"model": {"w": torch.zeros(100_000)}}, whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(packed, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name), zipfile.ZIP_DEFLATED)
    for weights in (True, False):
        refuse_damaged(whole, weights)
        with pytest.raises(ConfigurationError, match=r"packed\.pt is compressed"):
            refuse_damaged(packed, weights)
