"""Training on several nodes through scripts/train.sh, with launchers that are not the real ones."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairseq_deepnet import ended
from tests.support.runs import TINY, make_data
from tests.support.shell import ROOT, FakeBin, run_script

SEEMING_GPUS = """
import sys, torch
from fairseq_deepnet import cli
torch.cuda.device_count = lambda: 4
torch.cuda.get_device_name = lambda index: f"GPU {index}"
torch.cuda.is_bf16_supported = lambda: True
sys.exit(cli.main())
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "corpus")


@pytest.fixture
def four_gpus(fake_bin: FakeBin, tmp_path: Path) -> None:
    """Let `deepnet` see four GPUs."""
    script = tmp_path / "deepnet.py"
    script.write_text(SEEMING_GPUS, encoding="utf-8")
    fake_bin.add("deepnet", f'export PYTHONPATH={ROOT}; exec {sys.executable} {script} "$@"')


def train(
    fakes: FakeBin, run: Path, data: Path, *words: str, **env: str
) -> subprocess.CompletedProcess[str]:
    script, *options = words or ("train.sh", "multi30k", *TINY)
    variables = {"RUN": str(run), "DATA": str(data), "THREADS": "3", **env}
    return run_script(script, *options, env=variables, path=fakes.path())


SLURM_JOB = {
    **{"SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_PER_TASK": "12"},
    **{"SLURM_SUBMIT_DIR": str(ROOT)},
}


@pytest.mark.slow
@pytest.mark.usefixtures("four_gpus")
def test_a_slurm_job_starts_one_task_on_each_node(
    fake_bin: FakeBin, tmp_path: Path, data: Path
) -> None:
    # sbatch runs a copy of the file, from a folder of its own
    copied = tmp_path / "slurm_script"
    shutil.copy(ROOT / "scripts" / "slurm_train.sbatch", copied)
    fake_bin.add("scontrol", stdout="node7\nnode8\n")
    fake_bin.add("srun")
    run = tmp_path / "run"
    result = train(fake_bin, run, data, str(copied), "multi30k", *TINY, **SLURM_JOB)
    assert result.returncode == 0, result.stderr
    (training,) = fake_bin.calls("srun")
    one_a_node = ["--nodes=2", "--ntasks=2", "--ntasks-per-node=1"]
    assert training[:7] == [
        *(*one_a_node, "--gpus-per-node=4", "--kill-on-bad-exit=1", "--cpus-per-task=12"),
        "torchrun",
    ]
    assert "--rdzv-endpoint=node7:20077" in training
    assert training[training.index("--distributed-world-size") + 1] == "8"
    assert "--bf16" in training
    assert "\nsrun --nodes=2 " in (run / "command.txt").read_text(encoding="utf-8")
    assert ended.is_complete(run)


class TestSbatchFile:
    """scripts/slurm_train.sbatch by itself."""

    @pytest.mark.parametrize(
        ("state", "requeued"), [("RUNNING", True), ("COMPLETING", False), ("CANCELLED", False)]
    )
    def test_a_signal_is_passed_on_and_a_job_that_was_preempted_queues_itself_again(
        self, state: str, requeued: bool, fake_bin: FakeBin, tmp_path: Path
    ) -> None:
        began = tmp_path / "began"
        wait = f"touch {began}; for i in $(seq 600); do sleep 0.1; done"
        fake_bin.add("bash", f"trap 'touch {tmp_path}/ended; exit 85' TERM; {wait}")
        fake_bin.add("scontrol", stdout=f"JobId=77 JobState={state} Reason=None")
        job = subprocess.Popen(
            ["/bin/bash", ROOT / "scripts" / "slurm_train.sbatch", "multi30k"],
            env={**SLURM_JOB, "PATH": fake_bin.path()},
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        try:
            limit = time.monotonic() + 60
            while not began.exists():
                assert time.monotonic() < limit
                time.sleep(0.02)
            job.send_signal(signal.SIGTERM)
            _, errors = job.communicate(timeout=60)
        finally:
            job.kill()
        assert job.returncode == 85
        assert (tmp_path / "ended").exists()
        calls = [["show", "job", "77"], *([["requeue", "77"]] if requeued else [])]
        assert fake_bin.calls("scontrol") == calls
        assert ("is requeued and" in errors) is requeued
