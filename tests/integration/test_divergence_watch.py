"""Planted divergences in fairseq-train: early reports with layers and cause, and the reaction."""

import json
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet import ended
from fairseq_deepnet.divergence import events
from fairseq_deepnet.ended import DIVERGED
from fairseq_deepnet.monitoring import records
from tests.integration.conftest import SMALL, TRAIN, RunCommand
from tests.support.models import slow_but
from tests.support.training import logged, train_here, train_together

COMMON = ["--arch", "deepnet_transformer", *SMALL, *TRAIN]
COMMON += ["--disable-validation", "--lr-scheduler=fixed", "--log-interval=1", "--log-format=json"]
DEEP = [*COMMON, "--encoder-layers=18", "--decoder-layers=18", "--residual-scheme"]
# 18L-18L Post-LN without warm-up, at ten times a stable learning rate
PLANTED = [*DEEP, "post-ln", "--lr=0.01"]
# the learning rate is absurd from the second epoch, after 9 healthy updates
SHALLOW = [*COMMON, "--lr=0.001,10.0"]


def events_of(folder: Path) -> list[dict[str, Any]]:
    file = folder / events.NAME
    return list(records.read(file)) if file.is_file() else []


def losses(output: str) -> dict[int, float]:
    """Return losses by update; the last log line of an update counts."""
    lines = [line.rpartition(" | ")[2] for line in output.splitlines() if " train_inner " in line]
    updates = map(int, logged(lines, "num_updates"))
    return dict(zip(updates, logged(lines, "nll_loss"), strict=True))


def test_post_ln_without_warm_up_is_reported_with_its_layers_and_cause(
    tiny_data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", logger="fairseq_deepnet"):
        monitoring = ["--monitor-interval=5", "--monitor=token_rank"]
        train_here(tiny_data, tmp_path, *PLANTED, *monitoring, "--max-update=25")
    collapse, event = events_of(tmp_path)
    assert (collapse["kind"], collapse["update"]) == ("rank_collapse", 5)
    assert event["kind"] == "vanished_gradients"
    assert event["started"] <= 2
    assert event["update"] <= event["started"] + 20
    first, last, depth = event["layers"]["decoder"]
    assert (first, depth) == (1, 18)
    assert 9 <= last <= 17
    assert "without warm-up" in event["cause"]
    assert "--residual-scheme deepnorm" in event["cause"]
    assert len(event["last_good"]["gradient_norm"]["decoder"]) == 18
    _, line = [r.getMessage() for r in caplog.records if "divergence at update" in r.getMessage()]
    assert f"decoder layers 1-{last} of 18" in line


@pytest.mark.parametrize(
    "scheme", slow_but(("deepnorm",), ("deepnorm", "pre-ln", "rezero", "r-fixup"))
)
def test_a_healthy_run_raises_no_event(scheme: str, tiny_data: Path, tmp_path: Path) -> None:
    train_here(tiny_data, tmp_path, *DEEP, scheme, "--lr=0.001", "--max-update=40")
    assert events_of(tmp_path) == []


def test_stop_names_the_newest_earlier_checkpoint_in_one_line(
    tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_dir = tmp_path / "run"
    stopping = ["--on-divergence=stop", "--save-interval-updates=3", "--max-update=40"]
    with pytest.raises(SystemExit) as stopped:
        train_here(tiny_data, save_dir, *SHALLOW, *stopping)
    assert stopped.value.code == DIVERGED
    (event,) = events_of(save_dir)
    assert event["kind"] == "loss_spike"
    assert event["started"] == 11
    assert ended.read(save_dir) == {
        "why": "diverged",
        "attempt": 0,
        **{key: event[key] for key in ("update", "layers", "kind", "started", "what", "cause")},
    }
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "diverged at" in line]
    checkpoint = Path(line.partition("--restore-file ")[2].partition(" starts")[0])
    again = ["--lr=0.001", f"--restore-file={checkpoint}", "--max-update=12"]
    train_here(tiny_data, tmp_path / "again", *SHALLOW, *again, "--monitor-interval=1")
    lines = records.read(tmp_path / "again" / records.NAME)
    assert [record["update"] for record in lines] == [10, 11, 12]


def test_two_processes_stop_together(tiny_data: Path, tmp_path: Path) -> None:
    options = [*SHALLOW, "--max-update=25", "--on-divergence=stop"]
    (tmp_path / "divergence.jsonl").mkdir()  # writing fails, as on a full disk
    assert train_together(tiny_data, tmp_path, *options) == [DIVERGED, DIVERGED]
    assert ended.read(tmp_path)["why"] == "diverged"


def test_a_fallback_resumes_from_the_newest_earlier_checkpoint(
    run_command: RunCommand, tiny_data: Path, tmp_path: Path
) -> None:
    run, config = tmp_path / "run", tmp_path / "mine.yaml"
    config.write_text("arch: deepnet_transformer\n", encoding="utf-8")
    options = [option for option in SHALLOW if option != "--cpu"]
    options += ["--on-divergence=fallback", "--fallbacks=lr*0.0001", "--max-update=20"]
    options += ["--save-interval-updates=12", "--keep-interval-updates=2"]
    words = ["--gpus=0", f"--run={run}", f"--data={tiny_data}", config, "--", *options]
    result = run_command("deepnet", "train", *words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "fallback 1: lr*0.0001 from update 9 on" in result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    logged_losses = losses((run / "train.log").read_text(encoding="utf-8"))
    assert sorted(logged_losses) == list(range(1, 21))
    assert logged_losses[20] < logged_losses[10] < logged_losses[1]
    assert [event["attempt"] for event in events_of(run)] == [0]
    assert (run / "checkpoints" / "diverged_1" / "checkpoint_2_12.pt").is_file()
    (fallback,) = json.loads((run / "fallback.json").read_text(encoding="utf-8"))["history"]
    assert (fallback["change"], fallback["from_update"]) == ("lr*0.0001", 9)
