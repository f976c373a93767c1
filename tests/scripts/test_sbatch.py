"""scripts/slurm_train.sbatch trains in the job, forwards signals, and requeues itself."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.shell import ROOT, FakeBin, wait_until

SLURM_JOB = {"SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "2", "SLURM_SUBMIT_DIR": str(ROOT)}


@pytest.mark.parametrize("name", ["77", "77_3"])
@pytest.mark.parametrize(
    ("state", "requeued"), [("RUNNING", True), ("COMPLETING", False), ("CANCELLED", False)]
)
def test_a_signal_is_forwarded_and_a_preempted_job_requeues_itself(
    state: str, requeued: bool, name: str, fake_bin: FakeBin, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    wait = f"touch {began}; for i in $(seq 600); do sleep 0.1; done"
    note = f"echo $LAUNCHER $NODES >{tmp_path}/variables"
    fake_bin.add("bash", f"{note}; trap 'touch {tmp_path}/ended; exit 85' TERM; {wait}")
    fake_bin.add("scontrol", stdout=f"JobId=77 JobState={state} Reason=None")
    array = {"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "3"} if "_" in name else {}
    job = subprocess.Popen(
        ["/bin/bash", ROOT / "scripts" / "slurm_train.sbatch", "multi30k"],
        env={**SLURM_JOB, **array, "PATH": fake_bin.path()},
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        wait_until(began.exists)
        job.send_signal(signal.SIGTERM)
        _, errors = job.communicate(timeout=60)
    finally:
        job.kill()
    assert job.returncode == 85
    assert (tmp_path / "ended").exists()
    assert (tmp_path / "variables").read_text(encoding="utf-8") == "slurm 2\n"
    assert fake_bin.calls("bash") == [["scripts/train.sh", "multi30k"]]
    calls = [["show", "job", name], *([["requeue", name]] if requeued else [])]
    assert fake_bin.calls("scontrol") == calls
    assert ("is requeued and" in errors) is requeued
