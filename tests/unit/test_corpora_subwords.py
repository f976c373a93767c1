"""Training of subword models, and encoding and decoding with them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import sentencepiece

from fairseq_deepnet.tools.corpora.subwords import (
    FAIRSEQ_SPECIALS,
    decode_line,
    encode_lines,
    fairseq_symbols,
    load_model,
    train_model,
)
from fairseq_deepnet.tools.corpora.text import Recipe, normalise

SYLLABLES = ("do", "mo", "hun", "ka", "to", "lib", "ro", "gran", "da", "be", "la", "ku", "manĝ")
TRAPS = ["<unk>", "<s>", "</s>", "<pad>"]


def text(lines: int = 300) -> list[str]:
    rng = random.Random(7)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 3))) for _ in range(60)] + TRAPS
    return [" ".join(rng.choices(words, k=8)) for _ in range(lines)]


@pytest.fixture(scope="module", params=["bpe", "bpe with bytes", "unigram"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> sentencepiece.SentencePieceProcessor:
    folder = tmp_path_factory.mktemp("subwords")
    with_bytes = request.param.endswith("bytes")
    options = Recipe(
        subwords=request.param.split()[0],
        vocab_size=320 if with_bytes else 45,
        byte_fallback=with_bytes,
    )
    train_model(text(), folder / "spm", options)
    return load_model(folder / "spm.model")


def test_decoding_reverses_encoding_without_special_symbols_or_line_ends(
    model: sentencepiece.SentencePieceProcessor,
) -> None:
    odd = ["la  granda\thundo ", "<unk> <s> </s> <pad>", "la\u2028kato\x85en", "▁la ▁ ▁kato", "dom"]
    odd += ["a<s>b", "la\x85\x1c\x0b\rkato", "q\u3000z"]
    pieces = list(encode_lines(model, odd, workers=2))
    expected = [" ".join(normalise(line).split()) for line in odd]
    assert [decode_line(model, line) for line in pieces] == expected
    for line in pieces:
        assert not set(line.split()) & FAIRSEQ_SPECIALS
        assert len(line.splitlines()) == 1
        assert line.split() == line.split(" ")


def test_a_literal_end_of_sentence_becomes_unknown(tmp_path: Path) -> None:
    train_model(["kato kaj domo", "domo kaj kato"] * 50, tmp_path / "spm", Recipe(vocab_size=16))
    model = load_model(tmp_path / "spm.model")
    assert "</s>" in model.encode("kato </s>", out_type=str)  # fairseq would end the sentence
    (line,) = encode_lines(model, ["kato </s> <s> <pad>"], workers=1)
    assert set(line.split()) & FAIRSEQ_SPECIALS == {"<unk>"}


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_training_twice_gives_the_same_bytes(tmp_path: Path, kind: str) -> None:
    for name in ("a", "b"):
        train_model(text(), tmp_path / name, Recipe(subwords=kind, vocab_size=45, sample=300))
    for ending in ("model", "vocab"):
        contents = [(tmp_path / f"{name}.{ending}").read_bytes() for name in ("a", "b")]
        assert contents[0] == contents[1]


def test_a_vocabulary_that_is_too_large_or_small_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot learn 8000 .*VOCAB_SIZE.* value <= \d+"):
        train_model(text(), tmp_path / "spm", Recipe())
    with pytest.raises(ValueError, match=r"cannot learn 10 .*required_chars"):
        train_model(text(), tmp_path / "spm", Recipe(vocab_size=10))


def test_a_model_with_a_piece_that_fairseq_reserves_is_refused(tmp_path: Path) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text()),
        model_prefix=str(tmp_path / "spm"),
        vocab_size=45,
        user_defined_symbols=["<pad>"],
        minloglevel=2,
    )
    with pytest.raises(ValueError, match="'<pad>'"):
        fairseq_symbols(load_model(tmp_path / "spm.model"))
