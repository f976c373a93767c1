"""Moses tokens, byte-pair codes, and BLEU of tokens."""

from __future__ import annotations

import io
import random
from collections import Counter
from pathlib import Path

import pytest
from fairseq.data import Dictionary
from subword_nmt.learn_bpe import learn_bpe

from fairseq_deepnet.tools.corpora import moses
from fairseq_deepnet.tools.corpora.moses import tokenise
from fairseq_deepnet.tools.corpora.text import Recipe
from fairseq_deepnet.tools.evaluation import scoring

PLAIN = Recipe(kind="moses", max_words=175, max_ratio=1.5)


# Expected tokens were printed by Moses' tokenizer.perl (version of 2021, options -l LANGUAGE).
@pytest.mark.parametrize(
    ("language", "text", "tokens"),
    [
        ("en", 'It\'s the R&D "piece".', "It &apos;s the R &amp; D &quot; piece &quot; ."),
        ("en", "roads in the U.S.", "roads in the U.S ."),
        ("en", "the U.S. roads, 3,500 [sic]...", "the U.S. roads , 3,500 &#91; sic &#93; ..."),
        ("de", "Das ist's: z.B. ein «Hund»", "Das ist &apos; s : z.B. ein « Hund »"),
        ("de", "am 3. Mai  kam\u00a0er | <x>", "am 3. Mai kam er &#124; &lt; x &gt;"),
        ("en", " ", ""),
    ],
)
def test_tokens_equal_those_of_the_perl_tokeniser(language: str, text: str, tokens: str) -> None:
    assert tokenise(text, language, PLAIN) == tokens


def test_each_recipe_has_its_own_punctuation() -> None:
    text = "Well-known “It’s”\u200b."
    assert tokenise(text, "en", Recipe(lowercase=True)).startswith("well-known “ it ’ s")
    assert "Well-known “ It &apos;s" in tokenise(text, "en", Recipe(follows="iwslt14"), train=False)
    assert "It ’ s" in tokenise(text, "en", Recipe(follows="iwslt14"))
    normal = tokenise(text, "en", Recipe(follows="wmt14"))
    assert normal.startswith("Well @-@ known &quot; It &apos;s")
    assert "\u200b" not in normal
    assert "“ It &apos;s" in tokenise(text, "en", Recipe(follows="wmt14"), train=False)


def test_tokens_and_subwords_are_joined_to_text() -> None:
    text = "It's the 3,500th piece [sic], he said!"
    assert moses.detokenise(tokenise(text, "en", PLAIN), "en") == text
    assert moses.remove_bpe("un@@ break@@ able rul@@ es") == "unbreakable rules"
    assert moses.remove_bpe("cut of@@") == "cut of"


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("a b c", "d e", None),
        ("a b", "c d e f", "length ratio"),
        ("", "a", "empty"),
        ("a " * 175, "a " * 175, None),
        ("a " * 176, "a " * 176, "too long"),
        ("a" * 1000, "b", None),
        ("a" * 1001, "b", "long word"),
    ],
)
def test_pairs_are_dropped_as_by_clean_corpus_n(
    source: str, target: str, reason: str | None
) -> None:
    assert moses.why_dropped(source, target, PLAIN) == reason
    assert moses.why_dropped(target, source, PLAIN) == reason


def test_codes_equal_those_of_subword_nmt_on_the_text(tmp_path: Path) -> None:
    words = ["low", "lower", "lowest", "newer", "wider", "new"]
    text = [" ".join(random.Random(seed).choices(words, k=6)) for seed in range(50)]
    expected = io.StringIO()
    learn_bpe(io.StringIO("\n".join(text)), expected, 20)
    counts = Counter(" ".join(reversed(text)).split())
    codes = moses.learn_codes(counts, 20, tmp_path / "codes")
    assert (tmp_path / "codes").read_text(encoding="utf-8") == expected.getvalue()
    assert codes == expected.getvalue().count("\n") - 1
    lowest, pieces = moses.encode_lines(["lowest wider", "newlow"], tmp_path / "codes")
    assert lowest == "lowest wider"
    assert pieces != moses.remove_bpe(pieces) == "newlow"


def test_tokenised_bleu_equals_fairseqs() -> None:
    from fairseq.scoring.bleu import BleuConfig, Scorer

    generator = random.Random(5)
    lines = [generator.choices(["a", "b", "c", "d", "&apos;s", "."], k=8) for _ in range(40)]
    references = [" ".join(line) for line in lines]
    pieces = [
        " ".join(word if generator.random() < 0.8 else "x@@ y" for word in line) for line in lines
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
    assert "tok:none|smooth:none" in scores["bleu_tokenised_signature"]
