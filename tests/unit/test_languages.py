"""The table of languages against the counts that the corpora and papers publish."""

from __future__ import annotations

from sacrebleu.metrics.bleu import BLEU

from fairseq_deepnet.tools.evaluation import scoring
from fairseq_deepnet.tools.languages import find, languages


def test_opus_100_has_the_published_amounts_of_text() -> None:
    """README of the corpus: about 55 M; 44 pairs of 1 M, 73 from 100k, 95 from 10k."""
    lines = [entry.opus100 for entry in languages().values() if entry.opus100 is not None]
    assert round(sum(lines) / 1e6) == 55
    assert [sum(n >= bound for n in lines) for bound in (1e6, 1e5, 1e4)] == [44, 73, 95]


def test_every_spelling_leads_to_one_language() -> None:
    names: list[str] = []
    for entry in languages().values():
        own = {entry.code, entry.flores101, entry.m2m100, *entry.also} - {None}
        names += map(str, own)
        assert {find(str(name)) for name in own} == {entry}
    assert len(names) == len(set(names))


def test_codes_of_the_corpora_are_mapped() -> None:
    codes = {"zho_simpl": "zh", "zh_cn": "zh", "zho_trad": "zt", "nob": "no", "xx": None}
    for name, code in codes.items():
        entry = find(name)
        assert (entry and entry.code) == code
    assert (languages()["ns"].m2m100, languages()["ro"].flores101) == ("ns", "ron")


def test_every_tokenizer_named_is_one_that_sacrebleu_has() -> None:
    named = {entry.bleu for entry in languages().values()}
    assert named <= set(scoring.TOKENIZERS)
    assert set(scoring.TOKENIZERS) <= set(BLEU.TOKENIZERS)
