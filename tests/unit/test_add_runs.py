"""docs/add_runs.py: the rows that it adds to curves.csv and runs.csv."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from fairseq_deepnet.records import write_json
from fairseq_deepnet.tools.plotting.runs import Key, Run, Series

ADD_RUNS = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "add_runs.py"))


def test_curves_contain_every_validation_and_five_layers_of_a_stack() -> None:
    updates = np.arange(20, 2401, 20)
    layers = Series(updates, np.tile(np.arange(1.0, 501.0), (120, 1)))
    run = Run("a", Path(), {Key("token_rank", "encoder", "layer"): layers})
    rows = [tuple(row.values()) for row in ADD_RUNS["curves"](run)]
    assert rows == [
        ("a", "token_rank", "encoder", "layer", layer, update, str(layer))
        for layer in (1, 125, 250, 375, 500)
        for update in range(100, 2401, 100)
    ]
    run.series = {Key("nll_loss", "valid"): Series(updates, updates[:, None] / 1000)}
    assert [row["update"] for row in ADD_RUNS["curves"](run)] == updates.tolist()


def test_a_run_s_new_rows_replace_its_old_ones(tmp_path: Path) -> None:
    file = tmp_path / "curves.csv"
    file.write_text("run,update,value\na,1,2\nb,1,3\n", encoding="utf-8")
    ADD_RUNS["add"](file, [{"run": "a", "update": 4, "value": 5, "part": "layer"}])
    text = file.read_text(encoding="utf-8")
    assert text == "run,update,value\nb,1,3\na,4,5\n"
    with pytest.raises(UnicodeEncodeError):
        ADD_RUNS["add"](file, [{"run": "c", "value": "\ud800"}])
    assert file.read_text(encoding="utf-8") == text


def test_a_run_does_not_replace_another_run_of_the_same_name(tmp_path: Path) -> None:
    row, file = dict.fromkeys(ADD_RUNS["SETTINGS"]) | {"run": "a", "seed": 1}, tmp_path / "runs.csv"
    file.write_text(f"{','.join(row)}\n{','.join(str(v or '') for v in row.values())}\n", "utf-8")
    ADD_RUNS["refuse_others"](file, [row, row | {"run": "b", "lr": "1e-3"}])
    with pytest.raises(SystemExit, match=r"another run a \(\['lr'\]\): rename the folder"):
        ADD_RUNS["refuse_others"](file, [row | {"lr": "1e-3"}])


def test_a_scored_run_outside_a_sweep_has_its_bleu(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "scores").mkdir(parents=True)
    (run / "config.yaml").write_text("arch: transformer\nmax-tokens: 9\n", encoding="utf-8")
    (run / "train.log").touch()
    scores = {"bleu": 34.37, "chrf": 53.14, "split": "test"}
    write_json(run / "scores" / "test.checkpoint_best.beam5.lenpen1.json", scores)
    write_json(run / "environment.json", {"git": "97642d41"})
    row = ADD_RUNS["configuration"](Run("run", run, {}), "CPU")
    assert (row["bleu"], row["chrf"], row["revision"]) == (34.37, 53.14, "97642d4")
