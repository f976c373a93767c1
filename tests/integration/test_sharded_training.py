"""`--ddp-backend fully_sharded` through fairseq's commands; several processes in slow tests.

What fairseq's users reported of its own: facebookresearch/fairseq#4307, #3353, #3532.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_deepnet.checkpoints import load_checkpoint
from fairseq_deepnet.schemes import SCHEMES
from tests.integration.conftest import SMALL, TRAIN, RunCommand
from tests.support.sharded_process import compare, leave_group
from tests.support.training import free_port, train_here, train_together

PLUGIN = Path(__file__).parents[2] / "fairseq_deepnet"
# Adam with so large an epsilon: with 1e-8 a step is as large where the gradient is rounding alone
UPDATES = ["--arch=deepnet_transformer", *SMALL, *TRAIN, "--dropout=0", "--adam-eps=0.001"]
UPDATES += ["--clip-norm=1", "--bucket-cap-mb=0", "--log-interval=1"]
BLEU = ["--eval-bleu", "--eval-bleu-args", '{"beam": 2, "max_len_b": 6}']
BLEU += ["--eval-bleu-detok=space", "--best-checkpoint-metric=bleu"]
SHARDED = "--ddp-backend=fully_sharded"
STATE = "last_optimizer_state"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave no group of processes behind in the tests' own process, nor torch's hook."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    yield
    leave_group()


@pytest.mark.usefixtures("alone")
def test_one_process_validates_with_bleu_saves_and_goes_on_as_unsharded(
    tiny_data: Path, tmp_path: Path
) -> None:
    words = [*UPDATES, *BLEU, "--validate-interval-updates=1", "--distributed-world-size=1"]
    plain = train_here(tiny_data, tmp_path / "plain", *words, "--max-update=4")
    train_here(tiny_data, tmp_path / "parts", *words, SHARDED, "--max-update=2")
    parts = train_here(tiny_data, tmp_path / "parts", *words, SHARDED, "--max-update=4")
    assert compare(plain["model"], parts["model"]) < 1e-6
    assert compare(plain[STATE], parts[STATE]) < 1e-6
    assert plain["extra_state"]["val_loss"] == parts["extra_state"]["val_loss"]


def start(
    world: int, data: object, save_dir: Path, *options: object, code: str = ""
) -> list[subprocess.Popen[str]]:
    """fairseq-train, or a program around it, in so many processes."""
    program = [sys.executable, "-c", code] if code else ["fairseq-train"]
    base = [*program, data, "--user-dir", PLUGIN, "--save-dir", save_dir, *options]
    if world > 1:
        base += ["--distributed-backend=gloo", "--distributed-no-spawn", "--device-id=0"]
        base += [f"--distributed-init-method=tcp://127.0.0.1:{free_port()}"]
    save_dir.mkdir(parents=True, exist_ok=True)
    return [
        subprocess.Popen(
            [
                *map(str, base),
                f"--distributed-world-size={world}",
                *([f"--distributed-rank={rank}"] if world > 1 else []),
            ],
            stdout=(save_dir / f"log.{rank}").open("w", encoding="utf-8"),
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            cwd=save_dir.parent,
        )
        for rank in range(world)
    ]


def finish(processes: list[subprocess.Popen[str]], seconds: float = 900) -> list[int]:
    """Wait for all, and return their statuses."""
    until = time.monotonic() + seconds
    try:
        return [process.wait(max(1, until - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def train(world: int, data: object, save_dir: Path, *options: object) -> dict[str, Any]:
    """The checkpoint that so many processes leave."""
    statuses = finish(start(world, data, save_dir, *options), 3600)
    assert not any(statuses), (save_dir / "log.0").read_text(encoding="utf-8")[-3000:]
    held: dict[str, Any] = torch.load(save_dir / "checkpoint_last.pt", weights_only=True)
    return held


WIDE = [
    f"--{side}-{option}"
    for side in ("encoder", "decoder")
    for option in ("embed-dim=32", "ffn-embed-dim=64", "attention-heads=4")
]
ADAM = ["--optimizer=adam", "--lr=0.001", "--adam-eps=0.001", "--clip-norm=0.5"]


def cases(deep: bool) -> list[dict[str, Any]]:
    """Every scheme at 6L-6L, every way of training at one or two schemes; `deep`: every scheme at
    18L-18L, too.
    """

    def case(name: str, *words: str, arch: str = "deepnet_transformer", micro: int = 1) -> None:
        sides = {"deepnet_transformer_lm": "decoder", "deepnet_masked_lm": "encoder"}
        shape = [word for word in WIDE if sides.get(arch, "") in word]
        shape += [f"--{side}-layers=6" for side in ("encoder", "decoder") if side in str(shape)]
        found.append(
            {
                "name": name,
                "arch": arch,
                "arguments": [*shape, *ADAM, "--bucket-cap-mb=0", *words],
                "updates": 20,
                "micro_batches": micro,
            }
        )

    found: list[dict[str, Any]] = []
    for scheme in SCHEMES:
        case(scheme, f"--residual-scheme={scheme}")
    case("tied", "--share-all-embeddings")
    case("fused_adam", "--optimizer=fused_adam")
    case("update-freq 2", micro=2)
    case("update-freq 2, whole", "--no-reshard-after-forward", micro=2)
    case("checkpointing", "--checkpoint-activations-every=2")
    case("compile", "--compile", "--checkpoint-activations-every=2")
    case("chunked", "--criterion=chunked_label_smoothed_cross_entropy", "--label-smoothing=0.1")
    dropped = ["--dropout=0.3", "--attention-dropout=0.1", "--activation-dropout=0.1"]
    case("dropout", *dropped, micro=2)
    case("dropout, checkpointing", *dropped, "--checkpoint-activations-every=2")
    layers = ["--encoder-layers=18", "--decoder-layers=18", "--bucket-cap-mb=1"]
    case("18L-18L", *layers, "--checkpoint-activations-every=4", "--share-all-embeddings")
    for scheme in SCHEMES if deep else ():
        case(f"{scheme} 18L-18L", f"--residual-scheme={scheme}", *layers)
    case("language model", arch="deepnet_transformer_lm")
    case("masked language model", arch="deepnet_masked_lm")
    return found


def hold_against_whole(case: dict[str, Any], world: int, folder: Path) -> None:
    """Train a case sharded and whole in so many new processes; fail where the two differ.

    New ones, because glibc once aborted a process after four trainings (memcheck sees no error).
    """
    (folder / "case.json").write_text(json.dumps(case), encoding="utf-8")
    words = [sys.executable, "-X", "faulthandler", "-m", "tests.support.sharded_process"]
    port = free_port()
    processes = [
        subprocess.Popen(
            [*words, str(rank), str(world), str(port), str(folder)],
            stdout=(folder / f"log.{rank}").open("w", encoding="utf-8"),
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            cwd=PLUGIN.parent,
        )
        for rank in range(world)
    ]
    statuses = finish(processes, 900)
    ends = [(folder / f"log.{rank}").read_text(encoding="utf-8")[-3000:] for rank in range(world)]
    assert not any(statuses), "\n".join([case["name"], str(statuses), *ends])
    found = json.loads((folder / "differences.json").read_text(encoding="utf-8"))
    assert max(found["losses"], found["weights"], found["optimiser"]) < 1e-6, (case["name"], found)


@pytest.mark.parametrize("name", ["update-freq 2", "update-freq 2, whole", "fused_adam"])
def test_two_processes_train_sharded_what_they_train_whole(name: str, tmp_path: Path) -> None:
    (case,) = (case for case in cases(deep=False) if case["name"] == name)
    hold_against_whole({**case, "updates": 3}, 2, tmp_path)


@pytest.mark.parametrize("more", [[], ["--no-reshard-after-forward"]])
def test_two_processes_validate_save_go_on_and_are_resumed(
    more: list[str], tiny_data: Path, tmp_path: Path
) -> None:
    """Validation leaves weights gathered, and only rank 0 writes them."""
    words = [*UPDATES, "--validate-interval-updates=1", "--save-interval-updates=2"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train_together(tiny_data, whole, *words, "--max-update=5") == [0, 0]
    for until in (3, 5):
        sharded = [*words, SHARDED, *more, f"--max-update={until}"]
        assert train_together(tiny_data, parts, *sharded) == [0, 0]
    last = parts / "checkpoint_last.pt"
    plain, found = (load_checkpoint(f, entire=True) for f in (whole / last.name, last))
    assert compare(plain["model"], found["model"]) < 1e-6
    assert compare(plain[STATE], found[STATE]) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3, 4])
def test_several_processes_train_sharded_what_they_train_whole(world: int, tmp_path: Path) -> None:
    for case in cases(deep=world == 2):
        hold_against_whole(case, world, tmp_path)


@pytest.mark.slow
def test_killed_and_resumed_on_other_numbers_of_processes_and_under_either_backend(
    tiny_data: Path, tmp_path: Path
) -> None:
    """4 -> 2 -> 1 -> 4, with 4 micro-batches in every update."""
    way = [SHARDED]
    words = [*UPDATES, "--max-tokens=100", "--disable-validation"]
    whole = train(
        4, tiny_data, tmp_path / "whole", *words, "--max-update=9", "--ddp-backend=legacy_ddp"
    )
    parts = tmp_path / "parts"
    killed = start(
        *(4, tiny_data, parts, *words, *way, "--max-update=9", "--save-interval-updates=2")
    )
    file = parts / "checkpoint_1_2.pt"
    until = time.monotonic() + 300
    while not file.exists() and time.monotonic() < until:
        time.sleep(0.05)
    for process in killed:
        process.send_signal(signal.SIGKILL)
    assert finish(killed) == [-signal.SIGKILL] * 4
    last = parts / "checkpoint_last.pt"  # or the kill came before it was written
    held = torch.load(last if last.exists() else file, weights_only=True)
    made = held["optimizer_history"][-1]["num_updates"]
    assert 2 <= made < 9
    stages = ((2, 2, made + 1, way), (1, 4, made + 2, way))
    for world, micro, until_update, backend in (*stages, (4, 1, 9, ["--ddp-backend=legacy_ddp"])):
        more = [f"--update-freq={micro}", f"--max-update={until_update}", *backend]
        part = train(world, tiny_data, parts, *words, *more)
        assert part["optimizer_history"][-1]["num_updates"] == until_update
    assert compare(whole["model"], part["model"]) < 1e-6
    assert compare(whole[STATE], part[STATE]) < 1e-6


@pytest.mark.slow
def test_fairseq_4307_500_layers_a_side_train_save_resume_and_translate(
    tiny_data: Path, tmp_path: Path, run_command: RunCommand
) -> None:
    words = [*UPDATES, "--encoder-layers=500", "--decoder-layers=500", "--bucket-cap-mb=1"]
    words += [f"--{side}-embed-dim=64" for side in ("encoder", "decoder")]
    words += [f"--{side}-ffn-embed-dim=128" for side in ("encoder", "decoder")]
    words += ["--checkpoint-activations-every=auto", "--disable-validation", SHARDED]
    parts = tmp_path / "parts"
    train(4, tiny_data, parts, *words, "--max-update=1")
    held = train(4, tiny_data, parts, *words, "--max-update=2")
    assert held["optimizer_history"][-1]["num_updates"] == 2
    assert "decoder.layers.499.fc2.weight" in held["model"]
    assert all(value.isfinite().all() for value in held["model"].values())
    done = run_command(
        *("fairseq-generate", tiny_data, "--user-dir", PLUGIN, "--cpu", "--beam=1"),
        *("--path", parts / "checkpoint_last.pt", "--max-len-b=2", "--max-tokens=200"),
        *("--max-len-a=0", "--gen-subset=test"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("\nH-") == 12


def said(save_dir: Path, rank: int) -> str:
    return (save_dir / f"log.{rank}").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
def test_all_processes_end_when_one_is_killed(rank: int, tiny_data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    processes = start(
        *(3, tiny_data, folder, *UPDATES, SHARDED, "--disable-validation", "--max-update=100000")
    )
    until = time.monotonic() + 300
    while "num_updates" not in said(folder, 0) and time.monotonic() < until:
        time.sleep(0.1)
    processes[rank].send_signal(signal.SIGKILL)
    began = time.monotonic()
    statuses = finish(processes, 60)
    assert time.monotonic() - began < 60
    assert all(statuses)


FAILS = """
import sys
from fairseq.tasks.translation import TranslationTask
from fairseq.distributed import utils
step = TranslationTask.train_step
def failing(self, *args, **kwargs):
    if utils.get_global_rank() == 1 and kwargs["update_num"] == 1:
        raise KeyError("no such word")
    return step(self, *args, **kwargs)
TranslationTask.train_step = failing
from fairseq_cli.train import cli_main
sys.argv[0] = "fairseq-train"
cli_main()
"""


@pytest.mark.slow
def test_an_error_in_one_rank_ends_all(tiny_data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert all(finish(start(3, tiny_data, folder, *UPDATES, SHARDED, code=FAILS), 300))
    assert "KeyError: 'no such word'" in said(folder, 1)
    assert not (folder / "crash.pt").exists()
