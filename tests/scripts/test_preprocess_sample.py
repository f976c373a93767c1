"""scripts/preprocess_sample.sh: which text becomes the sample corpus."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairseq_deepnet.tools.corpora.published import sample
from tests.support.shell import run_script

# Of the text that the grammar made (seed 1), on which every number of the sample corpus rests.
SHA256 = {
    "train.de": "e862f8102c6bb3bb3c6c461dd04b6c4004fc20ee3fead9ee53515a28447be8c5",
    "train.en": "0f9e885daf393774c113e84d09708e5d8ab7e40b5773c9f4cd7c23742fda4c3b",
    "valid.de": "1a46eecc070d91d54c6cf038d88201b2db19038c0486ca3c9a2523af6f2612d1",
    "valid.en": "073bd974b12cb12d9b92a66e1e773c1273dd891392e81eb2d30a17d3557a2d72",
    "test.de": "ef0c853e14971edd7b062e0cae3519910322ae66c71e0f83f66f2d9cef1b2754",
    "test.en": "a85784b03a38ae62919bac8e0875b447c0f12b5466f98728d17bee0c4f321b8d",
}


def text(out: Path, **lines: int) -> dict[str, bytes]:
    """The files that preprocessing starts from."""
    value = SimpleNamespace(out=out, **lines)
    found = sample.rows(value, lambda: Path())
    return {path.name: path.read_bytes() for row in found for path in row.sides()}


def test_the_whole_corpus_is_the_text_that_the_published_numbers_rest_on(tmp_path: Path) -> None:
    whole = text(tmp_path / "out", **{name.lower(): n for name, n in sample.LINES.items()})
    assert {name: hashlib.sha256(lines).hexdigest() for name, lines in whole.items()} == SHA256
    german = b"".join(whole[f"{split}.de"] for split in ("train", "valid", "test")).split(b"\n")[
        :-1
    ]
    assert len(german) == len(set(german)) == 26_000


def test_fewer_pairs_are_the_first_ones(tmp_path: Path) -> None:
    out = tmp_path / "some"
    env = {"OUT": str(out), "TRAIN_LINES": "300", "VALID_LINES": "7", "TEST_LINES": "1"}
    env["VOCAB_SIZE"] = "90"
    run = run_script("preprocess_sample.sh", env=env)
    assert run.returncode == 0, run.stderr
    assert "300 train, 7 valid, 1 test lines; 90 bpe subwords" in run.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["some"]
    whole = text(tmp_path / "whole", **{name.lower(): n for name, n in sample.LINES.items()})
    for name in ("valid.de", "test.en"):
        kept = (out / "text" / name).read_bytes()
        assert whole[name].startswith(kept)


@pytest.mark.parametrize(
    ("name", "value"),
    [("TRAIN_LINES", "25001"), ("VALID_LINES", "0"), ("TEST_LINES", "some"), ("SEED", "5")],
)
def test_more_pairs_than_there_are_none_and_another_seed_are_refused(
    tmp_path: Path, name: str, value: str
) -> None:
    run = run_script("preprocess_sample.sh", env={name: value, "OUT": str(tmp_path / "out")})
    assert run.returncode == 2
    (line,) = run.stderr.splitlines()
    assert line.startswith(f"[preprocess_sample] error: {name} is '{value}'")
    assert not list(tmp_path.iterdir())
