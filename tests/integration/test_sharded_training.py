"""Sharded training through fairseq's commands; tests with several processes are mostly slow."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_deepnet.checkpoints import load_checkpoint
from fairseq_deepnet.schemes import SCHEMES
from tests.integration.conftest import SMALL, TRAIN
from tests.support.sharded_process import compare
from tests.support.shell import ROOT
from tests.support.training import free_port, train_here, train_together

# A large epsilon: with 1e-8, Adam takes full steps along gradients that are only rounding error.
UPDATES = ["--arch=deepnet_transformer", *SMALL, *TRAIN, "--dropout=0", "--adam-eps=0.001"]
UPDATES += ["--clip-norm=1", "--bucket-cap-mb=0", "--log-interval=1"]
BLEU = ["--eval-bleu", "--eval-bleu-args", '{"beam": 2, "max_len_b": 6}']
BLEU += ["--best-checkpoint-metric=bleu", "--maximize-best-checkpoint-metric"]
SHARDED = "--ddp-backend=fully_sharded"
STATE = "last_optimizer_state"


@pytest.mark.usefixtures("process_group")
def test_one_process_validates_with_bleu_saves_and_resumes_as_unsharded(
    tiny_data: Path, tmp_path: Path
) -> None:
    words = [*UPDATES, *BLEU, "--validate-interval-updates=1", "--distributed-world-size=1"]
    plain = train_here(tiny_data, tmp_path / "plain", *words, "--max-update=4")
    train_here(tiny_data, tmp_path / "parts", *words, SHARDED, "--max-update=2")
    parts = train_here(tiny_data, tmp_path / "parts", *words, SHARDED, "--max-update=4")
    assert compare(plain["model"], parts["model"]) < 1e-6
    assert compare(plain[STATE], parts[STATE]) < 1e-6
    assert plain["extra_state"]["val_loss"] == parts["extra_state"]["val_loss"]


def run(commands: list[list[str]], log: Path) -> None:
    """Run commands at the same time; raise AssertionError with the log if any fails."""
    with log.open("w", encoding="utf-8") as output:
        pipes: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT, "text": True}
        processes = [subprocess.Popen(command, cwd=ROOT, **pipes) for command in commands]
        try:
            statuses = [process.wait(900) for process in processes]
        finally:
            for process in processes:
                process.kill()
    assert not any(statuses), log.read_text(encoding="utf-8")[-6000:]


def train(world: int, data: Path, save_dir: Path, *options: str) -> dict[str, Any]:
    """Run fairseq-train in `world` processes and return the last checkpoint."""
    command = ["fairseq-train", str(data), "--user-dir", str(ROOT / "fairseq_deepnet")]
    command += ["--save-dir", str(save_dir), *options, f"--distributed-world-size={world}"]
    if world > 1:
        command += ["--distributed-backend=gloo", "--distributed-no-spawn", "--device-id=0"]
        command += [f"--distributed-init-method=tcp://127.0.0.1:{free_port()}"]
    ranks = [[f"--distributed-rank={rank}"] if world > 1 else [] for rank in range(world)]
    run([command + rank for rank in ranks], save_dir.with_suffix(".log"))
    checkpoint: dict[str, Any] = torch.load(save_dir / "checkpoint_last.pt", weights_only=True)
    return checkpoint


WIDE = [
    f"--{side}-{option}"
    for side in ("encoder", "decoder")
    for option in ("embed-dim=32", "ffn-embed-dim=63", "attention-heads=4", "layers=6")
]
ADAM = ["--optimizer=adam", "--lr=0.001", "--adam-eps=0.001", "--clip-norm=0.5"]
DROPOUT = ["--dropout=0.3", "--attention-dropout=0.1", "--activation-dropout=0.1"]
DEEP = ["--encoder-layers=18", "--decoder-layers=18", "--bucket-cap-mb=1"]
TWICE = "update-freq 2"
CASES: dict[str, list[str]] = {
    **{scheme: [f"--residual-scheme={scheme}"] for scheme in SCHEMES},
    "tied": ["--share-all-embeddings"],
    "fused_adam": ["--optimizer=fused_adam"],
    TWICE: [],
    f"{TWICE}, whole": ["--no-reshard-after-forward"],
    "checkpointing": ["--checkpoint-activations-every=2"],
    "compile": ["--compile", "--checkpoint-activations-every=2"],
    "chunked": ["--criterion=chunked_label_smoothed_cross_entropy", "--label-smoothing=0.1"],
    f"{TWICE}, dropout": DROPOUT,
    "dropout, checkpointing": [*DROPOUT, "--checkpoint-activations-every=2"],
    "18L-18L": [*DEEP, "--checkpoint-activations-every=4", "--share-all-embeddings"],
    "deepnet_transformer_lm": [],
    "deepnet_masked_lm": [],
}
"""Options by name: every scheme at 6L-6L, then other ways of training."""
DEEP_CASES = {f"{name} 18L-18L": [f"--residual-scheme={name}", *DEEP] for name in SCHEMES}


def compare_with_plain(name: str, options: list[str], world: int, updates: int, to: Path) -> None:
    """Train a case sharded and plain in `world` new processes; fail if they differ.

    Processes are new, because glibc once aborted a process after four runs.
    """
    sides = {"deepnet_transformer_lm": "decoder", "deepnet_masked_lm": "encoder"}
    shape = [word for word in WIDE if sides.get(name, "") in word]
    case = {
        "arch": name if name in sides else "deepnet_transformer",
        "arguments": [*shape, *ADAM, "--bucket-cap-mb=0", *options],
        "updates": updates,
        "micro_batches": 2 if name.startswith(TWICE) else 1,
    }
    (to / "case.json").write_text(json.dumps(case), encoding="utf-8")
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.support.sharded_process"]
    port = str(free_port())
    run([[*command, str(rank), str(world), port, str(to)] for rank in range(world)], to / "log")
    differences = json.loads((to / "differences.json").read_text(encoding="utf-8"))
    assert max(differences.values()) < 1e-6, (name, differences)


@pytest.mark.parametrize("name", [TWICE, f"{TWICE}, whole", "fused_adam"])
def test_two_processes_train_sharded_as_they_train_plain(name: str, tmp_path: Path) -> None:
    compare_with_plain(name, CASES[name], 2, 3, tmp_path)


def test_two_processes_validate_save_and_resume(tiny_data: Path, tmp_path: Path) -> None:
    """Validation leaves weights gathered, and only rank 0 writes them."""
    words = [*UPDATES, "--validate-interval-updates=1", "--save-interval-updates=2"]
    assert train_together(tiny_data, tmp_path / "whole", *words, "--max-update=5") == [0, 0]
    whole = load_checkpoint(tmp_path / "whole" / "checkpoint_last.pt", entire=True)
    for more in ([], ["--no-reshard-after-forward"]):
        parts = tmp_path / f"parts{len(more)}"
        for until in (3, 5):
            sharded = [*words, SHARDED, *more, f"--max-update={until}"]
            assert train_together(tiny_data, parts, *sharded) == [0, 0]
        resumed = load_checkpoint(parts / "checkpoint_last.pt", entire=True)
        assert compare(whole["model"], resumed["model"]) < 1e-6
        assert compare(whole[STATE], resumed[STATE]) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3, 4])
def test_several_processes_train_sharded_as_they_train_plain(world: int, tmp_path: Path) -> None:
    for name, options in (CASES | DEEP_CASES if world == 2 else CASES).items():
        compare_with_plain(name, options, world, 20, tmp_path)


@pytest.mark.slow
def test_a_run_resumes_on_other_numbers_of_processes_and_under_either_backend(
    tiny_data: Path, tmp_path: Path
) -> None:
    """Resume on 4, 2, 1 and again 4 processes, with 4 micro-batches in every update."""
    words = [*UPDATES, "--max-tokens=100", "--disable-validation"]
    plain = "--ddp-backend=legacy_ddp"
    whole = train(4, tiny_data, tmp_path / "whole", *words, "--max-update=9", plain)
    for world, until, backend in ((4, 3, SHARDED), (2, 4, SHARDED), (1, 5, SHARDED), (4, 9, plain)):
        more = [f"--update-freq={4 // world}", f"--max-update={until}", backend]
        parts = train(world, tiny_data, tmp_path / "parts", *words, *more)
        assert parts["optimizer_history"][-1]["num_updates"] == until
    assert compare(whole["model"], parts["model"]) < 1e-6
    assert compare(whole[STATE], parts[STATE]) < 1e-6
