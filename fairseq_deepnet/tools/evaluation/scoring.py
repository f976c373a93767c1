"""sacreBLEU and chrF of detokenised text, each with the signature that makes it comparable.

BLEU counts words, so text in Chinese, Japanese, Korean, Thai and the like is first cut into words
or characters, by the target language. spBLEU is BLEU on the pieces of a sentencepiece model: the
tokenizers flores101 and flores200.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.evaluation import bleu_tokenizers


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    target_language: str | None = None,
    tokenizer: str | None = None,
    lowercase: bool = False,
) -> dict[str, Any]:
    """Corpus BLEU and chrF of hypotheses against one reference each.

    Arguments:
        target_language: chooses BLEU's tokenisation; any code that languages.py knows
        tokenizer: BLEU's tokenisation, whatever the language (see bleu_tokenizers.TOKENIZERS)
        lowercase: count words that differ in case only as the same

    Raises ValueError for lists that are empty or not of the same length, and where a tokenizer
    needs what is not installed.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    if len(hypotheses) != len(references):
        raise ValueError(
            f"{len(hypotheses)} hypotheses for {len(references)} references; "
            "the two files must be translations line by line"
        )
    if not references:
        raise ValueError("there is nothing to score: the files are empty")
    name = bleu_tokenizers.check(tokenizer or bleu_tokenizers.choose(target_language))
    bleu, chrf = BLEU(tokenize=name, lowercase=lowercase), CHRF(lowercase=lowercase)
    bleu_score = bleu.corpus_score(hypotheses, [references])
    chrf_score = chrf.corpus_score(hypotheses, [references])
    return {
        "bleu": round(bleu_score.score, 4),
        "bleu_signature": str(bleu.get_signature()),
        "bleu_precisions": [round(value, 4) for value in bleu_score.precisions],
        "bleu_brevity_penalty": round(bleu_score.bp, 4),
        "chrf": round(chrf_score.score, 4),
        "chrf_signature": str(chrf.get_signature()),
        "lines": len(references),
    }


def describe(scores: dict[str, Any], what: str) -> str:
    """One readable line: both scores, what was scored, and BLEU's signature."""
    bleu, chrf = scores["bleu"], scores["chrf"]
    return f"BLEU {bleu:.2f}  chrF {chrf:.2f}  {what}  [{scores['bleu_signature']}]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `deepnet score`."""
    parser.add_argument("--hypotheses", type=Path, required=True, help="detokenised text")
    parser.add_argument("--references", type=Path, required=True, help="raw text, line by line")
    parser.add_argument("--tgt", help="target language: chooses BLEU's tokenizer (none: 13a)")
    parser.add_argument("--tokenizer", help=", ".join(bleu_tokenizers.TOKENIZERS))
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
    if args.json:
        print(json.dumps(scores, indent=2))
    else:
        print(describe(scores, f"{args.hypotheses}, {scores['lines']:,} lines"))
    return 0
