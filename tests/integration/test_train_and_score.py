"""From a config to scores with the real fairseq commands: train, resume, average, translate."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from fairseq_deepnet import ended
from fairseq_deepnet.checkpoints import load_checkpoint, num_updates
from tests.support.runs import SENTENCES, TINY, make_data
from tests.support.shell import run_script

OPTIONS = [*TINY, "--max-tokens=64", "--save-interval-updates=1", "--log-interval=1"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "corpus")


def train(
    run: Path, data: Path, config: str, updates: int, *options: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """Train in the folder of the run, to see that nothing is left there but the run."""
    run.parent.mkdir(parents=True, exist_ok=True)
    return run_script(
        "train.sh",
        *(config, *OPTIONS, "--max-update", str(updates), *options),
        env={"RUN": str(run), "DATA": str(data), "GPUS": "0", "THREADS": "1", **env},
        cwd=run.parent,
    )


def evaluate(target: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    variables = {"GPUS": "0", **env}
    return run_script("eval_bleu.sh", target, "--max-len-b", "5", *options, env=variables)


def test_a_run_is_trained_continued_averaged_and_scored(tmp_path: Path, data: Path) -> None:
    run = tmp_path / "runs" / "tiny"
    first = train(run, data, "multi30k", 2)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "update 2/2" in first.stdout
    assert "valid nll" in first.stdout
    assert "Traceback" not in first.stdout
    assert ended.is_complete(run)
    assert list((run / "tensorboard").rglob("events.*"))
    assert [path.name for path in run.parent.iterdir()] == ["tiny"], "nothing beside the run"

    # on two processes: rank 1 must get at the checkpoint, too
    more = train(run, data, "multi30k", 4, RESUME="1", CPU_PROCESSES="2")
    assert more.returncode == 0, more.stdout + more.stderr
    assert "resuming from update 2" in more.stderr
    assert "update 3/4" in more.stdout
    assert "update 1/4" not in more.stdout
    assert num_updates(load_checkpoint(run / "checkpoints" / "checkpoint_last.pt")) == 4

    averaged = evaluate(run, AVERAGE="3", PROCESSES="2")
    assert averaged.returncode == 0, averaged.stderr
    assert averaged.stdout.startswith("BLEU ")
    assert "average_3.pt (update 4)" in averaged.stdout
    name = run / "scores" / "test.average_3.beam5.lenpen1.max-len-b5"
    scores = json.loads(Path(f"{name}.json").read_text(encoding="utf-8"))
    assert scores["lines"] == len(SENTENCES)
    assert len(Path(f"{name}.txt").read_text(encoding="utf-8").split("\n")) == len(SENTENCES) + 1


@pytest.mark.slow
def test_a_stock_fairseq_transformer_is_trained_and_scored_the_same_way(
    tmp_path: Path, data: Path
) -> None:
    run = tmp_path / "runs" / "stock"
    result = train(run, data, "multi30k_6l_stock", 1)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "--arch transformer " in (run / "command.txt").read_text(encoding="utf-8")
    scored = evaluate(run, PROCESSES="1")
    assert scored.returncode == 0, scored.stderr
    assert scored.stdout.startswith("BLEU ")
