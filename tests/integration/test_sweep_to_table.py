"""A cell of a sweep, trained and scored by the real commands, in its table and a figure."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.monitoring import records
from tests.support.runs import SENTENCES, make_data

OPTIONS = [
    *("encoder-embed-dim=16", "decoder-embed-dim=16"),
    *("encoder-ffn-embed-dim=16", "decoder-ffn-embed-dim=16", "encoder-attention-heads=2"),
    *("decoder-attention-heads=2", "max-update=2", "validate-interval-updates=1", "log-interval=1"),
    *("max-tokens=256", "recipe.global-batch-tokens=256", "num-workers=0", "monitor-interval=1"),
    *("monitor=model_update", "score.AVERAGE=0", "score.max-len-a=0", "score.max-len-b=5"),
]


def test_a_cell_of_table_1_is_trained_scored_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    words = ["--gpus", "0", "--data", str(make_data(tmp_path / "data")), "--runs", str(runs)]
    assert cli.main(["sweep", *words, "table1", "depth=1", "scheme=deepnorm", *OPTIONS]) == 0
    run, printed = runs / "deepnorm_1l", capsys.readouterr()
    record = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert (record["status"], record["updates"]) == ("done", 2), record
    score = json.loads((run / record["score"]).read_text(encoding="utf-8"))
    assert score["lines"] == len(SENTENCES)
    assert f"scored, deepnorm_1l: {score['bleu_signature']}" in printed.out
    with (runs / "report.csv").open(encoding="utf-8") as lines:
        rows = {(row["row"], row["column"]): row for row in csv.DictReader(lines)}
    assert float(rows["deepnorm", "1"]["ours"]) == score["bleu"]
    assert (runs / "table1.png").read_bytes().startswith(b"\x89PNG")

    assert cli.main(["analysis", "fig5", str(runs), "--updates", "2"]) == 0
    with (runs / "fig5.csv").open(encoding="utf-8") as lines:
        (ours,) = [float(row["ours"]) for row in csv.DictReader(lines) if row["ours"]]
    *_, last = records.read(run / records.NAME)
    moved = last["values"]["model_update"]
    assert ours == float(f"{moved:.6g}") > 0
