"""Scores against sacreBLEU's own, and tokenisation by target language."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import sacrebleu
import sacrebleu.tokenizers.tokenizer_spm as sacrebleu_spm
import sentencepiece

from fairseq_deepnet.tools.evaluation.scoring import score, tokenizer_of

needs_mecab = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("MeCab", "ipadic", "mecab_ko")),
    reason="needs the extra cjk",
)
HYPOTHESES = ["The cat sat on the mat.", "a dog runs , fast", "Two men are playing chess outside"]
REFERENCES = ["The cat sat on a mat.", "A dog runs, fast.", "Two men play chess outside."]
CHINESE = ["我喜欢吃红色的苹果。", "他们在公园里踢足球。"]
JAPANESE = ["私は赤いリンゴが好きです。", "彼らは公園でサッカーをしています。"]
KOREAN = ["나는 빨간 사과를 좋아합니다.", "그들은 공원에서 축구를 하고 있습니다."]
THAI = ["ฉันชอบกินแอปเปิ้ลสีแดง", "พวกเขากำลังเล่นฟุตบอลในสวน"]


def test_scores_and_signatures_are_sacrebleus() -> None:
    scores = score(HYPOTHESES, REFERENCES)
    bleu = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES])
    chrf = sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES])
    assert scores["bleu"] == round(bleu.score, 4)
    assert scores["chrf"] == round(chrf.score, 4)
    assert scores["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|")
    assert scores["chrf_signature"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|")
    assert scores["lines"] == 3


def test_texts_of_different_lengths_and_empty_texts_are_refused() -> None:
    for texts in ((HYPOTHESES[:2], REFERENCES), ([], [])):
        with pytest.raises(ValueError, match="{} hypotheses for {} ref".format(*map(len, texts))):
            score(*texts)


@pytest.mark.parametrize(
    ("target", "tokenizer"),
    [
        *[("de", "13a"), ("zh", "zh"), ("zho_simpl", "zh"), ("zh-cn", "zh"), ("jpn", "ja-mecab")],
        *[("ko", "ko-mecab"), ("th", "char"), ("my", "char"), ("xx", "13a"), (None, "13a")],
        *[("zh-CN", "zh"), ("zh_Hans", "zh"), ("cmn", "zh"), ("ja_XX", "ja-mecab")],
    ],
)
def test_the_target_language_selects_the_tokenizer(target: str | None, tokenizer: str) -> None:
    assert tokenizer_of(target) == tokenizer


@pytest.mark.parametrize(
    ("target", "text", "signature"),
    [
        ("zh", CHINESE, "tok:zh"),
        ("th", THAI, "tok:char"),
        pytest.param("ja", JAPANESE, "tok:ja-mecab-0.996-IPA", marks=needs_mecab),
        pytest.param("ko", KOREAN, "tok:ko-mecab-0.996/ko-0.9.2-KO", marks=needs_mecab),
    ],
)
def test_text_without_spaces_is_scored_by_its_words(
    target: str, text: list[str], signature: str
) -> None:
    """One of several words is wrong. 13a sees one wrong word per line, for a BLEU near zero."""
    wrong = [line[1:] for line in text]
    by_words = score(wrong, text, target_language=target)
    assert signature in by_words["bleu_signature"].split("|")
    assert by_words["bleu"] > 60
    assert score(text, text, target_language=target)["bleu"] == pytest.approx(100)
    if target != "ko":
        assert score(wrong, text)["bleu"] < 30


def test_a_missing_word_segmenter_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sacrebleu.BLEU, "__init__", lambda *_, **__: sys.exit("\nno mecab\n"))
    with pytest.raises(ValueError, match=r"^the tokenizer ko-mecab .*\): install the extra cjk"):
        score(KOREAN, KOREAN, target_language="ko")


def test_spbleu_uses_a_local_sentencepiece_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sacrebleu_spm, "SACREBLEU_DIR", str(tmp_path))
    (tmp_path / "models").mkdir()
    (tmp_path / "text").write_text("\n".join([*CHINESE, *THAI, "a red apple"] * 5), "utf-8")
    model = tmp_path / "models" / "sacrebleu_tokenizer_spm"
    sentencepiece.SentencePieceTrainer.train(
        input=f"{tmp_path}/text", model_prefix=str(model), vocab_size=56, minloglevel=2
    )
    counted = score([CHINESE[0]] * 2, CHINESE, target_language="zh", tokenizer="flores101")
    assert "tok:flores101" in counted["bleu_signature"].split("|")
    pieces = sentencepiece.SentencePieceProcessor(model_file=f"{model}.model")
    by_hand = score(
        [" ".join(pieces.encode_as_pieces(CHINESE[0]))] * 2,
        [" ".join(pieces.encode_as_pieces(line)) for line in CHINESE],
        tokenizer="none",
    )
    assert counted["bleu"] == by_hand["bleu"]
