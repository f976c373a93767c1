"""BLEU of Moses tokens as they are, which fairseq's recipes and many papers report.

It is what `fairseq-generate --remove-bpe` prints, and no sacreBLEU: it depends on the tokeniser,
on lower case and on the escapes of the data folder, so it compares only with results on the same
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairseq_deepnet.tools.corpora.moses import remove_bpe


def score(pieces: Sequence[str], references: Sequence[str], lowercase: bool) -> dict[str, Any]:
    """Corpus BLEU of hypotheses in subwords against references in tokens.

    Arguments:
        pieces: hypotheses, subwords joined by spaces
        references: tokens joined by spaces, as in DATA/tokenised
        lowercase: whether the tokens are in lower case; said in the result, changes nothing

    Raises ValueError for lists of different lengths.
    """
    from sacrebleu.metrics.bleu import BLEU

    if len(pieces) != len(references):
        raise ValueError(
            f"{len(pieces)} hypotheses for {len(references)} tokenised references; make the data "
            "folder anew"
        )
    # fairseq smooths nothing and takes what stands between spaces for a word
    bleu = BLEU(tokenize="none", smooth_method="none", force=True)
    result = bleu.corpus_score([remove_bpe(line) for line in pieces], [references])
    return {
        "bleu_tokenised": round(result.score, 4),
        "bleu_tokenised_signature": str(bleu.get_signature()),
        "bleu_tokenised_lowercase": lowercase,
    }


def describe(scores: dict[str, Any]) -> str:
    """One line that cannot be taken for sacreBLEU."""
    case = "lower-cased" if scores["bleu_tokenised_lowercase"] else "cased"
    return (
        f"tokenised BLEU {scores['bleu_tokenised']:.2f}  {case} Moses tokens, as fairseq-generate "
        f"--remove-bpe; not sacreBLEU  [{scores['bleu_tokenised_signature']}]"
    )
