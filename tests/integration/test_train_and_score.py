"""The real scripts and fairseq commands, from a config to a score."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from fairseq_deepnet import ended
from tests.support.runs import SENTENCES, TINY, make_data
from tests.support.shell import run_script

OPTIONS = [*TINY, "--max-tokens=64", "--save-interval-updates=1", "--log-interval=1"]


def test_a_run_on_two_processes_is_trained_averaged_and_scored(tmp_path: Path) -> None:
    run, data = tmp_path / "runs" / "tiny", make_data(tmp_path / "corpus")
    run.parent.mkdir()

    def call(script: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        # in the run's folder, to check that no other files are written there
        environment = {"GPUS": "0", **variables}
        process = run_script(script, *words, env=environment, cwd=run.parent)
        assert process.returncode == 0, process.stdout + process.stderr
        return process

    words = ["multi30k", *OPTIONS, "--max-update", "2"]
    trained = call("train.sh", *words, RUN=str(run), DATA=str(data), CPU_PROCESSES="2", THREADS="1")
    assert "update 2/2" in trained.stdout
    assert "valid nll" in trained.stdout
    assert "Traceback" not in trained.stdout
    assert "--arch=deepnet_transformer " in (run / "command.txt").read_text(encoding="utf-8")
    assert ended.is_complete(run)
    assert list((run / "tensorboard").rglob("events.*"))
    assert [path.name for path in run.parent.iterdir()] == ["tiny"]

    scored = call("eval_bleu.sh", str(run), "--max-len-b", "5", AVERAGE="2", PROCESSES="1")
    assert scored.stdout.startswith("BLEU ")
    assert "average_2.pt (update 2)" in scored.stdout
    name = run / "scores" / "test.average_2.beam5.lenpen1.max-len-b5"
    record = json.loads(Path(f"{name}.json").read_text(encoding="utf-8"))
    assert record["lines"] == len(SENTENCES)
    assert len(Path(f"{name}.txt").read_text(encoding="utf-8").split("\n")) == len(SENTENCES) + 1
