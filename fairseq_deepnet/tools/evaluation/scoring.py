"""Metrics for translated text: sacreBLEU's BLEU and chrF with signatures, and the off-target rate.

BLEU compares words. Text in Korean, and in languages without spaces between words (such as Chinese,
Japanese and Thai), is therefore first split into words or characters by one of sacreBLEU's
tokenizers, chosen by target language as in M2M-100. spBLEU is BLEU on sentencepiece pieces, with
the tokenizer flores101 or flores200.

The off-target rate is the share of translations in the wrong language. py3langid identifies the
language of each line among the corpus's languages. An off-target rate below py3langid's error
rate on the references is not meaningful.
"""

import functools
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, Final

from fairseq_deepnet.tools import languages
from fairseq_deepnet.tools.corpora.moses import remove_bpe

METRICS: Final = {"bleu": "BLEU", "chrf": "chrF"}
"""Key in a score's record -> name of the metric, in the order in which metrics are printed."""
TOKENISED: Final = "bleu_tokenised"
"""Key of BLEU on Moses tokens, as fairseq computes it, in the scores of Moses data."""
TOKENIZERS: Final = (
    *("13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none", "flores101", "flores200"),
)
MINIMUM_LETTERS: Final = 10
"""Minimum number of letters in a line for its language to be identified.

Shorter lines, such as names, numbers and single words, may belong to any language.
"""
_DENSE: Final = ((0x3040, 0x30FF), (0x3400, 0x9FFF), (0xAC00, 0xD7A3), (0x20000, 0x323AF))


def tokenizer_of(target_language: str | None) -> str:
    """Return the tokenizer for a target language, or sacreBLEU's default for unknown languages."""
    code = target_language or ""
    language = languages.find(code) or languages.find(re.split("[-_]", code)[0])  # such as zh_Hans
    return language.bleu if language else "13a"


def load_bleu(name: str, lowercase: bool = False) -> Any:
    """Return sacreBLEU's BLEU with this tokenizer, or raise ValueError if it cannot be used.

    For spBLEU, sacreBLEU downloads a sentencepiece model unless the model is in $SACREBLEU/models
    (by default, ~/.sacrebleu/models).
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
    from sacrebleu.utils import SACREBLEU_DIR

    remedy = "install the extra cjk: EXTRAS=dev,cjk bash scripts/setup.sh"
    if name in SPM_MODELS:
        remedy = f"copy {SPM_MODELS[name]['url']} to {SACREBLEU_DIR}/models"
    try:
        return BLEU(tokenize=name, lowercase=lowercase)
    except (RuntimeError, OSError, SystemExit) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"the tokenizer {name} cannot be used ({reason}): {remedy}") from error


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    target_language: str | None = None,
    tokenizer: str | None = None,
    lowercase: bool = False,
) -> dict[str, Any]:
    """Score hypotheses against one reference each; return all metrics, signatures and details.

    Args:
        target_language: language code (see languages.yaml) that determines BLEU's tokenizer.
        tokenizer: one of TOKENIZERS, to be used for BLEU instead of the target language's.
        lowercase: if True, ignore case.

    Raises ValueError if the lists are empty or differ in length, or if sacreBLEU cannot use the
    tokenizer.
    """
    from sacrebleu.metrics.chrf import CHRF

    if len(hypotheses) != len(references) or not references:
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    bleu = load_bleu(tokenizer or tokenizer_of(target_language), lowercase)
    chrf = CHRF(lowercase=lowercase)
    words = bleu.corpus_score(hypotheses, [references])
    characters = chrf.corpus_score(hypotheses, [references])
    return {
        "bleu": round(words.score, 4),
        "bleu_signature": str(bleu.get_signature()),
        "bleu_precisions": [round(value, 4) for value in words.precisions],
        "bleu_brevity_penalty": round(words.bp, 4),
        "chrf": round(characters.score, 4),
        "chrf_signature": str(chrf.get_signature()),
        "lines": len(references),
    }


def score_tokens(pieces: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Return BLEU on unchanged Moses tokens, as `fairseq-generate --remove-bpe` computes it.

    fairseq's recipes and many papers report this BLEU. It depends on the tokenisation, lower-casing
    and escapes in the data, so it is comparable only between results on the same tokens.

    Args:
        pieces: hypotheses, as subwords joined by spaces.
        references: tokens joined by spaces, as in DATA/tokenised.
    """
    from sacrebleu.metrics.bleu import BLEU

    # fairseq does not smooth, and splits words only at spaces
    bleu = BLEU(tokenize="none", smooth_method="none", force=True)
    result = bleu.corpus_score([remove_bpe(line) for line in pieces], [references])
    signature = str(bleu.get_signature())
    return {TOKENISED: round(result.score, 4), f"{TOKENISED}_signature": signature}


def numbers(scores: Mapping[str, Any]) -> str:
    """Format the metrics in a record, as in "BLEU 27.30  chrF 54.10"."""
    return "  ".join(f"{name} {scores[key]:.2f}" for key, name in METRICS.items())


def letters(line: str) -> int:
    """Count letters and combining marks; a Chinese character, kana or hangul counts as three."""
    points = [ord(letter) for letter in line if unicodedata.category(letter)[0] in "LM"]
    dense = sum(any(first <= point <= last for first, last in _DENSE) for point in points)
    return len(points) + 2 * dense


@functools.cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    logging.getLogger("py3langid").setLevel(logging.WARNING)
    return LanguageIdentifier.from_model_file(MODEL_FILE)


def _labels(codes: Sequence[str]) -> dict[str, str]:
    """Map each of py3langid's labels to the first of `codes` that has this label."""
    pairs = [(code, languages.find(code)) for code in reversed(codes)]
    return {language.langid: code for code, language in pairs if language and language.langid}


def off_target(
    hypotheses: Sequence[str], target: str, candidates: Sequence[str]
) -> tuple[float | None, Counter[str]]:
    """Identify the language of each line, as the target language or one of the candidates.

    Codes that py3langid does not distinguish (nb and no, zh and zt) count as one language.

    Returns:
        The share of identified lines that are not in the target language, from 0 to 1, and the
        number of lines by language. The share is None if no line is long enough, or if py3langid
        does not support the target and at least one other candidate.
    """
    names = _labels([target, *candidates])
    if not _labels([target]) or len(names) < 2:
        return None, Counter()
    identifier = _identifier()
    identifier.set_languages(sorted(names))
    long = [line for line in hypotheses if letters(line) >= MINIMUM_LETTERS]
    counts = Counter(names[identifier.classify(line)[0]] for line in long)
    return (1 - counts[target] / len(long) if long else None), counts


def off_target_record(
    hypotheses: Sequence[str], references: Sequence[str], target: str, candidates: Sequence[str]
) -> dict[str, Any]:
    """Return the off-target rates of hypotheses and references, language counts and a signature."""
    share, counts = off_target(hypotheses, target, candidates)
    floor, _ = off_target(references, target, candidates)
    version, labels = metadata.version("py3langid"), sorted(_labels([*candidates, target]))
    return {
        "off_target": None if share is None else round(share, 4),
        "off_target_floor": None if floor is None else round(floor, 4),
        "off_target_languages": dict(counts.most_common()),
        "off_target_signature": f"py3langid:{version}|min:{MINIMUM_LETTERS}|{','.join(labels)}",
    }
