"""Process that trains under legacy_ddp and then with a sharded model.

Run `python -m tests.support.sharded_process RANK WORLD PORT FOLDER`. FOLDER/case.json contains the
architecture, arguments, updates and micro-batches. Rank 0 writes the largest differences of losses,
weights and optimiser state to FOLDER/differences.json.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from fairseq.distributed import utils as distributed
from fairseq.trainer import Trainer

from fairseq_deepnet.observers import gradient_scale
from tests.support.rig import EOS, SYMBOLS, Pair, Rig

STATE = "last_optimizer_state"


def leave_group() -> None:
    """Destroy the process group of the tests' own process.

    torch's DTensor cache would keep the group alive. A process forked later would drop this cache
    and wait forever for the group's threads, which do not exist there.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    torch._C._clear_DTensor_sharding_propagator_cache()  # type: ignore[attr-defined]
    vars(distributed.get_global_group).pop("_global_group", None)


def pairs(generator: random.Random, count: int) -> list[Pair]:
    """Return sentence pairs with random words and lengths."""

    def words() -> list[int]:
        length = generator.randint(1, 7)
        return [generator.randint(4, SYMBOLS - 1) for _ in range(length)] + [EOS]

    return [(words(), words()) for _ in range(count)]


def seen_losses(trainer: Trainer) -> list[float]:
    """Return a list that training fills with losses per token, before fairseq rounds them."""
    seen: list[float] = []
    log, clip = trainer._reduce_and_log_stats, trainer.clip_grad_norm
    scales: list[float] = []

    def clipped(clip_norm: float) -> Any:
        scales.append(gradient_scale(trainer.optimizer))  # fused_adam applies it in its step
        return clip(clip_norm)

    def noted(outputs: Any, sample_size: float, grad_norm: Any = None) -> Any:
        if grad_norm is not None:
            seen.append(sum(float(output["loss"]) for output in outputs) / float(sample_size))
            norms = [getattr(p, "whole_gradient_norm", None) for p in trainer.model.parameters()]
            squares = sum(float(norm) ** 2 for norm in norms if norm is not None)
            # observers' norms of full gradients must add up to the clipped norm
            whole = scales[-1] * squares**0.5
            assert not squares or abs(whole / float(grad_norm) - 1) < 1e-4
        return log(outputs, sample_size, grad_norm)

    trainer.clip_grad_norm, trainer._reduce_and_log_stats = clipped, noted
    return seen


def train(
    folder: Path, rank: int, world: int, backend: str, case: dict[str, Any]
) -> tuple[list[float], dict[str, Any]]:
    """Return a run's losses and, on rank 0, its checkpoint."""
    arguments = [f"--distributed-world-size={world}", f"--ddp-backend={backend}"]
    rig = Rig(folder, *arguments, *case["arguments"], arch=case["arch"])
    losses = seen_losses(rig.trainer)
    generator = random.Random(1)
    for _ in range(case["updates"]):
        all_batches = [
            [pairs(generator, generator.randint(1, 3)) for _ in range(case["micro_batches"])]
            for _ in range(world)
        ]
        rig.update(*all_batches[rank])
    rig.trainer.consolidate_optimizer()
    return losses, rig.trainer.state_dict() if rank == 0 else {}


def compare(plain: Any, sharded: Any) -> float:
    """Return the largest difference of numbers in two nested states; 1 if structures differ."""
    if isinstance(plain, torch.Tensor):
        if not isinstance(sharded, torch.Tensor) or plain.shape != sharded.shape:
            return 1.0
        return float((plain.double() - sharded.double()).abs().max()) if plain.numel() else 0.0
    if isinstance(plain, dict):
        if plain.keys() != sharded.keys():
            return 1.0
        return max((compare(plain[key], sharded[key]) for key in plain), default=0.0)
    if isinstance(plain, list | tuple):
        both = zip(plain, sharded, strict=True)
        return max((compare(value, other) for value, other in both), default=0.0)
    if isinstance(plain, float) and isinstance(sharded, float):
        return abs(plain - sharded)
    return float(plain != sharded)


def main(rank: int, world: int, port: int, folder: Path) -> None:
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    case = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    plain, whole = train(folder, rank, world, "legacy_ddp", case)
    sharded, gathered = train(folder, rank, world, "fully_sharded", case)
    if rank == 0:
        differences = {
            "losses": max(abs(a - b) for a, b in zip(plain, sharded, strict=True)),
            "weights": compare(whole["model"], gathered["model"]),
            "optimiser": compare(whole[STATE], gathered[STATE]),
        }
        (folder / "differences.json").write_text(json.dumps(differences), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
