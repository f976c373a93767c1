"""A sweep with the real commands: a cell trained, scored, and in the paper's table."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from tests.support.runs import SENTENCES, make_data
from tests.support.shell import run_script


def test_a_rehearsal_of_table_1_ends_in_its_table(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data")
    knobs = {"TINY": "1", "GPUS": "0", "DATA": str(data)}
    knobs |= {"RUNS": str(tmp_path / "runs")}
    done = run_script("sweep.sh", "table1", "depth=1", "scheme=deepnorm", env=knobs, timeout=900)
    assert done.returncode == 0, done.stderr
    assert "1 to do" in done.stderr
    runs = tmp_path / "runs.tiny"

    run = runs / "deepnorm_1l"
    record = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert record["status"] == "done", record
    assert "--residual-scheme deepnorm " in (run / "command.txt").read_text(encoding="utf-8")
    assert record["updates"] == 2
    score = json.loads((run / record["score"]).read_text(encoding="utf-8"))
    assert score["lines"] == len(SENTENCES)
    assert f"scored, deepnorm_1l: {score['bleu_signature']}" in done.stdout
    with (runs / "report.csv").open(encoding="utf-8") as lines:
        (row,) = [
            row for row in csv.DictReader(lines) if (row["row"], row["column"]) == ("deepnorm", "1")
        ]
    assert (float(row["ours"]), row["status"]) == (score["bleu"], "done")
    assert "![table1](table1.png)" in (runs / "report.md").read_text(encoding="utf-8")
    assert (runs / "table1.png").read_bytes().startswith(b"\x89PNG")
