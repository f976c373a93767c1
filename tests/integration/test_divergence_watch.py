"""Planted divergences in fairseq-train: reported in time, with layers and cause; acted upon."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_deepnet import ended
from fairseq_deepnet.divergence import events
from fairseq_deepnet.ended import DIVERGED
from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.monitoring import records
from tests.integration.conftest import TRAIN, RunCommand
from tests.support.slow import slow_but
from tests.support.training import logged, train_here, train_together

SHAPE = [
    f"--{side}-{name}={size}"
    for side in ("encoder", "decoder")
    for name, size in (("embed-dim", 16), ("ffn-embed-dim", 24), ("attention-heads", 2))
]
COMMON = ["--arch", "deepnet_transformer", *SHAPE, *TRAIN, "--share-all-embeddings"]
COMMON += ["--disable-validation", "--lr-scheduler=fixed", "--log-interval=1", "--log-format=json"]
DEEP = [*COMMON, "--encoder-layers=18", "--decoder-layers=18", "--residual-scheme"]
# 18L-18L Post-LN without warm-up, at ten times the learning rate that would do
PLANTED = [*DEEP, "post-ln", "--lr=0.01"]
# a learning rate that is absurd from the second epoch on: all is well for 9 updates
SHALLOW = [*COMMON, "--encoder-layers=2", "--decoder-layers=2", "--lr=0.001,10.0"]


def told(folder: Path) -> list[dict[str, Any]]:
    file = folder / events.NAME
    return list(records.read(file)) if file.is_file() else []


def losses(output: str) -> dict[int, float]:
    """Update -> loss, the last time it was logged."""
    lines = [line.rpartition(" | ")[2] for line in output.splitlines() if " train_inner " in line]
    updates = map(int, logged(lines, "num_updates"))
    return dict(zip(updates, logged(lines, "nll_loss"), strict=True))


def test_post_ln_without_warm_up_is_reported_with_its_layers_and_cause(
    tiny_data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", logger="fairseq_deepnet"):
        train_here(tiny_data, tmp_path, *PLANTED, "--max-update=25")
    (event,) = told(tmp_path)
    assert event["kind"] == "vanished_gradients"
    assert event["started"] <= 2
    assert event["update"] <= event["started"] + 20
    first, last, depth = event["layers"]["decoder"]
    assert (first, depth) == (1, 18)
    assert 9 <= last <= 17
    assert "without warm-up" in event["cause"]
    assert "--residual-scheme deepnorm" in event["cause"]
    assert len(event["last_good"]["gradient_norm"]["decoder"]) == 18
    (line,) = [r.getMessage() for r in caplog.records if "divergence at update" in r.getMessage()]
    assert f"decoder layers 1-{last} of 18" in line


@pytest.mark.parametrize(
    "scheme", slow_but(("deepnorm",), ("deepnorm", "pre-ln", "rezero", "r-fixup"))
)
def test_a_healthy_training_raises_no_event(scheme: str, tiny_data: Path, tmp_path: Path) -> None:
    train_here(tiny_data, tmp_path, *DEEP, scheme, "--lr=0.001", "--max-update=40")
    assert told(tmp_path) == []
    assert {path.name for path in tmp_path.iterdir()} >= {"checkpoint_last.pt"}


def test_stop_names_the_newest_checkpoint_from_before_in_one_line(
    tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_dir = tmp_path / "run"
    stopping = ["--on-divergence=stop", "--save-interval-updates=3", "--max-update=40"]
    with pytest.raises(SystemExit) as stopped:
        train_here(tiny_data, save_dir, *SHALLOW, *stopping)
    assert stopped.value.code == DIVERGED
    (event,) = told(save_dir)
    assert event["kind"] == "loss_spike"
    assert event["started"] == 11
    assert ended.read(save_dir) == {
        "why": "diverged",
        "attempt": 0,
        **{key: event[key] for key in ("update", "layers", "kind", "started", "what", "cause")},
    }
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "diverged at" in line]
    good = Path(line.partition("--restore-file ")[2].split(",")[0])
    held = torch.load(good, weights_only=True)
    assert held["optimizer_history"][-1]["num_updates"] == 9
    # and another run can start from it
    again = ["--lr=0.001", f"--restore-file={good}", "--max-update=12", "--monitor-interval=1"]
    train_here(tiny_data, tmp_path / "again", *SHALLOW, *again)
    made = [record["update"] for record in records.read(tmp_path / "again" / records.NAME)]
    assert made == [10, 11, 12]


def test_two_processes_stop_together(tiny_data: Path, tmp_path: Path) -> None:
    options = [*SHALLOW, "--max-update=25", "--on-divergence=stop"]
    assert train_together(tiny_data, tmp_path, *options) == [DIVERGED, DIVERGED]
    assert ended.read(tmp_path)["why"] == "diverged"


def test_a_fallback_resumes_from_the_newest_checkpoint_from_before(
    run_command: RunCommand, tiny_data: Path, tmp_path: Path
) -> None:
    run, config = tmp_path / "run", tmp_path / "mine.yaml"
    config.write_text("arch: deepnet_transformer\n", encoding="utf-8")
    options = [option for option in SHALLOW if option != "--cpu"]
    options += ["--on-divergence=fallback", "--fallbacks=lr*0.0001", "--max-update=20"]
    options += ["--save-interval-updates=12", "--keep-interval-updates=2"]
    words = ["--gpus=0", f"--run={run}", f"--data={tiny_data}", config, "--", *options]
    done = run_command("deepnet", "train", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "fallback 1: starting again from update 9 with lr*0.0001" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    seen = losses((run / "train.log").read_text(encoding="utf-8"))
    assert sorted(seen) == list(range(1, 21))
    assert seen[20] < seen[10] < seen[1]
    assert [event["attempt"] for event in told(run)] == [0]
    # that of epoch 1; what came after it is kept, out of the way
    aside = {path.name for path in (run / "checkpoints" / "diverged_1").iterdir()}
    assert aside >= {"checkpoint_2_12.pt"}
    (taken,) = json.loads((run / "fallback.json").read_text(encoding="utf-8"))["history"]
    assert (taken["change"], taken["from_update"]) == ("lr*0.0001", 9)


def test_fallbacks_without_their_policy_are_refused_before_anything_starts(
    tiny_data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="--fallbacks needs --on-divergence fallback"):
        train_here(tiny_data, tmp_path / "run", *SHALLOW, "--fallbacks=lr*0.5")
    assert not (tmp_path / "run").exists()
