"""Moses tokens, byte-pair codes and the stages that make them; BLEU of tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from fairseq.data import Dictionary

from fairseq_deepnet.tools.corpora import moses, moses_folder
from fairseq_deepnet.tools.corpora.builder import rows_of
from fairseq_deepnet.tools.corpora.clean import Limits
from fairseq_deepnet.tools.corpora.folder import DataFolder
from fairseq_deepnet.tools.corpora.moses import Tokenisation, tokenise
from fairseq_deepnet.tools.corpora.moses_folder import MosesPair
from fairseq_deepnet.tools.evaluation import scoring

PLAIN = Tokenisation()
LIMITS = Limits(1, 175, 1.5)
PAIR = ("de", "en")


# Expected tokens were printed by Moses' tokenizer.perl (version of 2021, options -l LANGUAGE).
@pytest.mark.parametrize(
    ("language", "text", "tokens"),
    [
        ("en", 'It\'s the R&D "piece".', "It &apos;s the R &amp; D &quot; piece &quot; ."),
        ("en", "roads in the U.S.", "roads in the U.S ."),
        ("en", "the U.S. roads, e.g. 3,500 [sic]...", None),
        ("de", "Das ist's: z.B. ein «Hund»", "Das ist &apos; s : z.B. ein « Hund »"),
        ("de", "am 3. Mai  kam\u00a0er | <x>", "am 3. Mai kam er &#124; &lt; x &gt;"),
        ("en", " ", ""),
    ],
)
def test_tokens_are_those_of_the_perl_tokeniser(
    language: str, text: str, tokens: str | None
) -> None:
    expected = tokens if tokens is not None else "the U.S. roads , e.g. 3,500 &#91; sic &#93; ..."
    assert tokenise(text, language, PLAIN) == expected


def test_each_option_changes_what_it_says() -> None:
    text = "Well-known “It’s”\u200b."
    assert tokenise(text, "en", Tokenisation(lowercase=True)).startswith("well-known")
    assert tokenise(text, "en", Tokenisation(aggressive=True)).startswith("Well @-@ known")
    assert "It &apos;s" in tokenise(text, "en", Tokenisation(apostrophes=True))
    normal = tokenise(text, "en", Tokenisation(punctuation=True))
    assert "&quot; It &apos;s" in normal
    assert "\u200b" not in normal


def test_text_comes_back_from_tokens_and_subwords() -> None:
    text = "It's the 3,500th piece [sic], he said!"
    tokens = tokenise(text, "en", PLAIN)
    assert moses.detokenise(tokens, "en") == text
    assert moses.remove_bpe("un@@ break@@ able rul@@ es") == "unbreakable rules"
    assert moses.remove_bpe("cut of@@") == "cut of"
    assert moses.decode_line("It &apos;s th@@ e R &amp; D", "en") == "It's the R & D"


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("a b", "c", "length ratio"),
        ("a b c", "d e", None),
        ("a b", "c d e", None),
        ("a b", "c d e f", "length ratio"),
        ("", "a", "empty"),
        ("a " * 175, "a " * 175, None),
        ("a " * 176, "a " * 176, "too long"),
        ("a" * 1000, "b", None),
        ("a" * 1001, "b", "long word"),
    ],
)
def test_pairs_are_dropped_as_clean_corpus_n_does(
    source: str, target: str, reason: str | None
) -> None:
    assert moses.why_dropped(source, target, LIMITS) == reason
    assert moses.why_dropped(target, source, LIMITS) == reason


def test_codes_are_those_of_subword_nmt_on_the_text(tmp_path: Path) -> None:
    import io

    from subword_nmt.learn_bpe import learn_bpe

    words = ["low", "lower", "lowest", "newer", "wider", "new"]
    text = [" ".join(random.Random(seed).choices(words, k=6)) for seed in range(50)]
    expected = io.StringIO()
    learn_bpe(io.StringIO("\n".join(text)), expected, 20)
    counts: dict[str, int] = {}
    for word in " ".join(reversed(text)).split():
        counts[word] = counts.get(word, 0) + 1
    found = moses.learn_codes(counts, 20, tmp_path / "codes")
    assert (tmp_path / "codes").read_text(encoding="utf-8") == expected.getvalue()
    assert found == expected.getvalue().count("\n") - 1
    assert moses.encode_lines(["lowest wider"], tmp_path / "codes") == ["lowest wider"]
    (pieces,) = moses.encode_lines(["newlow"], tmp_path / "codes")
    assert pieces != "newlow"
    assert moses.remove_bpe(pieces) == "newlow"


@pytest.mark.parametrize("words", [{}, {"a": 5}])
def test_codes_of_nothing_are_refused(tmp_path: Path, words: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="no text to learn"):
        moses.learn_codes(words, 10, tmp_path / "codes")


def write_raw(folder: Path, lines: int) -> None:
    folder.mkdir()
    for side, language in enumerate(PAIR):
        content = [f"Zeile {n}, ja!" if side == 0 else f"Line {n}, yes!" for n in range(lines)]
        content[3] = "" if side else "Leer."
        content[4] = "Eine sehr, sehr lange Zeile hier." if side == 0 else "Short."
        (folder / f"train.{language}").write_text(
            "".join(f"{line}\n" for line in content), encoding="utf-8"
        )
        test = "Ein’s.\n" if side == 0 else "It’s.\n"
        (folder / f"test.{language}").write_text(test * 2, encoding="utf-8")


def corpus(folder: Path, how: Tokenisation = PLAIN, **options: Any) -> MosesPair:
    """The text that `write_raw` has written, with the limits of these tests unless told."""
    rows = rows_of(PAIR, str(folder / "train"), None, str(folder / options.pop("test", "test")))
    return MosesPair(rows, how, options.pop("limits", LIMITS), **options)


def tokenised(made: MosesPair, out: Path) -> dict[str, Any]:
    made.tokenise(out)
    return dict(json.loads((out / "clean.json").read_text(encoding="utf-8")))


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


@pytest.mark.parametrize(("chunk", "workers"), [(10_000, 1), (4, 2)])
def test_every_nth_clean_pair_is_held_out_with_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, workers: int
) -> None:
    monkeypatch.setattr(moses_folder, "CHUNK", chunk)
    write_raw(tmp_path / "raw", 26)
    how = Tokenisation(lowercase=True, apostrophes=True)
    out = tmp_path / "out"
    report = tokenised(corpus(tmp_path / "raw", how, hold_out=5, workers=workers), out)
    kept = [n for n in range(26) if n not in (3, 4)]
    assert lines_of(out / "text" / "valid.en") == [f"Line {n}, yes!" for n in kept[4::5]]
    assert lines_of(out / "tokenised" / "valid.de") == [f"zeile {n} , ja !" for n in kept[4::5]]
    rest = [n for index, n in enumerate(kept, start=1) if index % 5]
    assert lines_of(out / "text" / "train.de") == [f"Zeile {n}, ja!" for n in rest]
    assert lines_of(out / "tokenised" / "test.en") == ["it &apos;s ."] * 2
    assert lines_of(out / "text" / "test.en") == ["It’s."] * 2
    assert report["train"] == {
        **{"read": 26, "kept": len(rest), "dropped": {"empty": 1, "length ratio": 1}}
    }
    assert report["valid"]["kept"] == 4
    assert report["test"]["kept"] == 2


def test_cleaning_by_subwords_drops_text_and_tokens_alike(tmp_path: Path) -> None:
    write_raw(tmp_path / "raw", 26)
    made = corpus(tmp_path / "raw", hold_out=5, clean_on="subwords", merges=30)
    report = tokenised(made, tmp_path / "tokens")
    assert report["train"]["kept"] + report["valid"]["kept"] == 26
    made.learn(tmp_path / "tokens", tmp_path)
    encoded = tmp_path / "encoded"
    made.encode(tmp_path / "tokens", tmp_path / "bpe.codes", encoded)
    for split in ("train", "valid", "test"):
        for language in PAIR:
            name = f"{split}.{language}"
            text = lines_of(encoded / "text" / name)
            words = lines_of(encoded / "tokenised" / name)
            pieces = lines_of(encoded / name)
            assert [moses.remove_bpe(line) for line in pieces] == words
            assert len(text) == len(words)
        assert "" not in lines_of(encoded / f"{split}.en")
    counts = json.loads((encoded / "text" / "clean.json").read_text(encoding="utf-8"))
    for split in ("train", "valid"):
        assert counts[split]["kept"] == len(lines_of(encoded / f"{split}.de"))
        for pair in zip(*(lines_of(encoded / f"{split}.{x}") for x in PAIR), strict=True):
            assert moses.why_dropped(*pair, LIMITS) is None
    assert counts["train"]["dropped"] == {"empty": 1}
    assert counts["valid"]["dropped"] == {"length ratio": 1}


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({}, "give either a text for validation or pairs of train"),
        ({"hold_out": 99}, "every 99th is, and train keeps 24"),
        ({"hold_out": 2, "limits": Limits(1, 2, 1)}, "no pair of .* is left"),
    ],
)
def test_what_cannot_be_tokenised_is_one_line(
    tmp_path: Path, options: dict[str, Any], cause: str
) -> None:
    write_raw(tmp_path / "raw", 26)
    with pytest.raises(ValueError, match=cause):
        tokenised(corpus(tmp_path / "raw", **options), tmp_path / "out")


def test_a_moses_folder_is_decoded_by_tokens(tmp_path: Path) -> None:
    record = {"source": "de", "target": "en", "tokenisation": "moses", "lowercase": True}
    (tmp_path / "corpus.json").write_text(json.dumps(record), encoding="utf-8")
    folder = DataFolder.open(tmp_path)
    assert folder.decode(["it &apos;s fi@@ ne ."], "en") == ["it's fine."]
    assert folder.is_lowercase
    assert folder.subword_model("en").name == "bpe.codes"


def test_tokenised_bleu_is_what_fairseq_prints() -> None:
    from fairseq.scoring.bleu import BleuConfig, Scorer

    generator = random.Random(5)
    words = ["a", "b", "c", "d", "&apos;s", "."]
    references = [" ".join(generator.choices(words, k=generator.randint(4, 12))) for _ in range(40)]
    pieces = [
        " ".join(w if generator.random() < 0.8 else "x@@ y" for w in line.split())
        for line in references
    ]
    symbols = Dictionary()
    scorer = Scorer(BleuConfig(pad=symbols.pad(), eos=symbols.eos(), unk=symbols.unk()))
    for reference, line in zip(references, pieces, strict=True):
        scorer.add(
            symbols.encode_line(reference, add_if_not_exist=True),
            symbols.encode_line(moses.remove_bpe(line), add_if_not_exist=True),
        )
    scores = scoring.score_tokens(pieces, references, lowercase=True)
    assert scores["bleu_tokenised"] == pytest.approx(scorer.score(), abs=0.01)
    assert 20 < scores["bleu_tokenised"] < 90
    assert "tok:none" in scores["bleu_tokenised_signature"]
    line = scoring.describe_tokens(scores)
    assert "lower-cased Moses tokens" in line
    assert "not sacreBLEU" in line


def test_tokenised_bleu_needs_a_reference_for_each_line() -> None:
    with pytest.raises(ValueError, match="2 hypotheses for 1 tokenised references"):
        scoring.score_tokens(["a", "b"], ["a"], lowercase=False)
