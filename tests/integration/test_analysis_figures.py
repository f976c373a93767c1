"""An analysis figure with the real commands: runs trained with monitoring on, then drawn."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.monitoring import records
from tests.support.runs import make_data
from tests.support.shell import run_script


@pytest.mark.slow
def test_a_rehearsal_of_figure_5_ends_in_its_table_csv_and_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_data(tmp_path / "data")
    knobs = {"TINY": "1", "GPUS": "0", "PARALLEL": "2", "DATA": str(data), "ONLY": "post-ln*"}
    knobs |= {"RUNS": str(tmp_path / "runs")}
    done = run_script("sweep.sh", "fig5", "depth=1", env=knobs, timeout=900)
    assert done.returncode == 0, done.stderr
    words = [
        "fig5",
        str(tmp_path / "runs.tiny"),
        "--out",
        str(tmp_path / "out"),
        "--updates",
        "1-2",
    ]
    assert cli.main(["analysis", *words]) == 0
    assert capsys.readouterr().out.startswith(
        "fig5: model update by depth, mean of updates 1 to 2\n"
    )

    with (tmp_path / "out" / "fig5.csv").open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["panel"] == "fig5" and row["ours"]]
    assert [row["line"] for row in rows] == ["post-ln", "post-ln-stock"]
    for row in rows:
        file = tmp_path / "runs.tiny" / f"{row['line']}_1l" / records.NAME
        moved = [record["values"]["model_update"] for record in records.read(file)]
        assert len(moved) == 2
        assert 0 < moved[0] < moved[1]
        assert float(row["ours"]) == float(f"{statistics.fmean(moved):.6g}")
    assert (tmp_path / "out" / "fig5.png").read_bytes().startswith(b"\x89PNG")
