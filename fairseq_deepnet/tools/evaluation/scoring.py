"""sacreBLEU's metrics of detokenised text, with their signatures.

BLEU counts words. Text in languages without spaces between words, such as Chinese, Japanese and
Thai, and Korean text is therefore first split into words or characters by sacreBLEU's tokenizers,
which are selected by target language, as in M2M-100 and sacreBLEU. spBLEU is BLEU on the pieces of
a sentencepiece model: the tokenizers flores101 and flores200.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.files import whole
from fairseq_deepnet.tools import languages
from fairseq_deepnet.tools.corpora.moses import remove_bpe

METRICS: Final = {"bleu": "BLEU", "chrf": "chrF"}
"""Key of a record -> heading, in the order of lines and tables; see `score`."""
TOKENISED: Final = "bleu_tokenised"
"""Key of fairseq's BLEU on the tokens of the data, if a score contains it besides sacreBLEU."""
SENTENCEPIECE: Final = {"flores101": "FLORES101_SPM", "flores200": "FLORES200_SPM"}
"""Tokenizer of spBLEU -> environment variable with the file of its sentencepiece model."""
TOKENIZERS: Final = ("13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none", *SENTENCEPIECE)


def tokenizer_of(target_language: str | None) -> str:
    """Return the tokenizer of a target language; 13a, sacreBLEU's default, if it is unknown."""
    language = languages.find(target_language) if target_language else None
    return language.bleu if language else "13a"


@functools.cache
def check_tokenizer(name: str) -> str:
    """Return a tokenizer's name; ValueError if sacreBLEU cannot use it.

    sacreBLEU downloads the sentencepiece model of spBLEU to the folder models/ in SACREBLEU, by
    default ~/.sacrebleu, unless FLORES101_SPM or FLORES200_SPM names a copy.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
    from sacrebleu.utils import SACREBLEU_DIR

    variable, remedy = SENTENCEPIECE.get(name, ""), "choose --tokenizer char (TOKENIZER)"
    try:
        if variable:
            url = SPM_MODELS[name]["url"]
            remedy = f"set {variable} to a copy of {url}"
            if own := os.environ.get(variable):
                place = Path(SACREBLEU_DIR) / "models" / url.rpartition("/")[2]
                place.parent.mkdir(parents=True, exist_ok=True)
                with whole(place) as part:
                    shutil.copyfile(own, part)
        BLEU(tokenize=name)
    except (RuntimeError, OSError, SystemExit) as error:
        raise ValueError(f"the tokenizer {name} cannot be used ({error}): {remedy}") from error
    return name


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    target_language: str | None = None,
    tokenizer: str | None = None,
    lowercase: bool = False,
) -> dict[str, Any]:
    """Return all metrics of hypotheses against one reference each, with signatures and details.

    Args:
        target_language: selects BLEU's tokenizer; any code known to languages.py.
        tokenizer: BLEU's tokenizer for any language (one of TOKENIZERS).
        lowercase: ignore case.

    Raises ValueError for empty lists, for lists of different lengths, and for a tokenizer that
    sacreBLEU cannot use.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    if len(hypotheses) != len(references) or not references:
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    name = check_tokenizer(tokenizer or tokenizer_of(target_language))
    bleu, chrf = BLEU(tokenize=name, lowercase=lowercase), CHRF(lowercase=lowercase)
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
    """Return BLEU of Moses tokens without further tokenisation, as `fairseq-generate --remove-bpe`.

    fairseq's recipes and many papers report it. It depends on the tokeniser, lower-casing and
    escapes of the data folder and is therefore comparable only with results on the same tokens.

    Args:
        pieces: hypotheses, subwords joined by spaces.
        references: tokens joined by spaces, as in DATA/tokenised.
    """
    from sacrebleu.metrics.bleu import BLEU

    # fairseq does not smooth, and splits words at spaces only
    bleu = BLEU(tokenize="none", smooth_method="none", force=True)
    result = bleu.corpus_score([remove_bpe(line) for line in pieces], [references])
    signature = str(bleu.get_signature())
    return {TOKENISED: round(result.score, 4), f"{TOKENISED}_signature": signature}


def numbers(scores: Mapping[str, Any]) -> str:
    """Format all metrics of a record, as in "BLEU 27.30  chrF 54.10"."""
    return "  ".join(f"{name} {scores[key]:.2f}" for key, name in METRICS.items())
