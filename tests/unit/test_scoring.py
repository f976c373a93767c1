"""Scores against sacreBLEU itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sacrebleu

from fairseq_deepnet import cli
from fairseq_deepnet.tools.evaluation.scoring import score

HYPOTHESES = ["The cat sat on the mat.", "a dog runs , fast", "Two men are playing chess outside"]
REFERENCES = ["The cat sat on a mat.", "A dog runs, fast.", "Two men play chess outside."]


def test_scores_and_signatures_are_sacrebleus() -> None:
    scores = score(HYPOTHESES, REFERENCES)
    bleu = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES])
    chrf = sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES])
    assert scores["bleu"] == round(bleu.score, 4)
    assert scores["chrf"] == round(chrf.score, 4)
    assert scores["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|")
    assert scores["chrf_signature"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|")
    assert scores["lines"] == 3


def test_texts_of_different_length_and_empty_ones_are_refused() -> None:
    with pytest.raises(ValueError, match="2 hypotheses for 3 references"):
        score(HYPOTHESES[:2], REFERENCES)
    with pytest.raises(ValueError, match="nothing to score"):
        score([], [])


def test_deepnet_score_prints_a_line_or_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hypotheses, references = tmp_path / "h", tmp_path / "r"
    hypotheses.write_text("\n".join(HYPOTHESES) + "\n", encoding="utf-8")
    references.write_text("\n".join(REFERENCES) + "\n", encoding="utf-8")
    files = ["--hypotheses", str(hypotheses), "--references", str(references)]
    expected = score(HYPOTHESES, REFERENCES)
    assert cli.main(["score", *files]) == 0
    line = capsys.readouterr().out
    assert line.startswith(f"BLEU {expected['bleu']:.2f}  chrF {expected['chrf']:.2f}  ")
    assert line.count("\n") == 1
    assert cli.main(["score", *files, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == expected


@pytest.mark.parametrize(
    ("content", "message"), [(None, "there is no file|No such file"), (b"\xff\n", "UTF-8")]
)
def test_files_that_are_not_there_or_not_utf8_are_named(
    tmp_path: Path, content: bytes | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hypotheses.en"
    if content is not None:
        path.write_bytes(content)
    status = cli.main(["score", "--hypotheses", str(path), "--references", str(path)])
    said = capsys.readouterr().err
    assert status == 2
    assert "hypotheses.en" in said
    assert any(part in said for part in message.split("|"))
