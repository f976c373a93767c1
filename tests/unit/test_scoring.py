"""Scores against sacreBLEU itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import sacrebleu

from fairseq_deepnet import cli
from fairseq_deepnet.records import write_record
from fairseq_deepnet.tools.evaluation.direction_scores import summarise
from fairseq_deepnet.tools.evaluation.scoring import METRICS, Metric, score
from fairseq_deepnet.tools.run_scores import read_score

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


def test_scores_are_cased() -> None:
    upper = [line.upper() for line in REFERENCES]
    assert score(REFERENCES, REFERENCES)["bleu"] == 100
    assert score(upper, REFERENCES)["bleu"] < 50


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


def test_a_further_metric_is_a_row_that_records_lines_and_tables_follow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = score(HYPOTHESES, REFERENCES)
    ter = Metric("TER", lambda module, tokenizer, lowercase: module.TER(case_sensitive=True))
    monkeypatch.setitem(METRICS, "ter", ter)
    scores = score(HYPOTHESES, REFERENCES)
    expected = sacrebleu.TER(case_sensitive=True).corpus_score(HYPOTHESES, [REFERENCES])
    assert scores["ter"] == round(expected.score, 4)
    assert scores["ter_signature"].startswith("nrefs:1|case:mixed|tok:tercom|")

    for name, lines in (("h", HYPOTHESES), ("r", REFERENCES)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = ["--hypotheses", str(tmp_path / "h"), "--references", str(tmp_path / "r")]
    assert cli.main(["score", *files]) == 0
    assert f"  TER {scores['ter']:.2f}  " in capsys.readouterr().out

    many = tmp_path / "scores" / "test.many"
    many.mkdir(parents=True)
    write_record(many / "de-en.json", scores | {"zero_shot": False})
    write_record(many / "en-de.json", before | {"zero_shot": False})  # scored before there was TER
    table = summarise(many)
    assert re.search(r"\| +BLEU \| +chrF \| +TER \|", table)
    found = json.loads((many / "summary.json").read_text(encoding="utf-8"))["averages"]
    assert found["X-En"]["ter"] == scores["ter"]
    assert found["all"]["ter"] is None, "no mean of some directions only"
    assert "bleu,chrf,ter,off_target" in (many / "table.csv").read_text(encoding="utf-8")

    write_record(tmp_path / "scores" / "test.one.json", scores)
    one = read_score(tmp_path, "scores/test.one.json")
    assert one is not None
    assert (one.values["ter"], one.signatures["ter"]) == (scores["ter"], scores["ter_signature"])


def test_a_character_that_only_looks_like_a_line_end_ends_no_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x"
    path.write_text("a b\u2028c d\ne f g h\n", encoding="utf-8")
    assert cli.main(["score", "--hypotheses", str(path), "--references", str(path)]) == 0
    assert "2 lines" in capsys.readouterr().out


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
