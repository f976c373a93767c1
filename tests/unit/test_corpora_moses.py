"""Moses tokens, byte-pair codes and the stages that make them; BLEU of tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from fairseq.data import Dictionary

from fairseq_deepnet.tools.corpora import moses
from fairseq_deepnet.tools.corpora.folder import DataFolder
from fairseq_deepnet.tools.corpora.moses import Tokenisation, tokenise
from fairseq_deepnet.tools.corpora.text import Limits
from fairseq_deepnet.tools.evaluation import scoring

PLAIN = Tokenisation()
LIMITS = Limits(1, 175, 1.5)


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
    scores = scoring.score_tokens(pieces, references)
    assert scores["bleu_tokenised"] == pytest.approx(scorer.score(), abs=0.01)
    assert 20 < scores["bleu_tokenised"] < 90
    assert "tok:none" in scores["bleu_tokenised_signature"]
