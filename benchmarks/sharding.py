"""What `--ddp-backend fully_sharded` holds in each process and sends between them, on CPUs by gloo.

    python benchmarks/sharding.py memory                 # 50L-50L, width 256: 1, 2 and 4 processes
    python benchmarks/sharding.py communication          # 100L-100L, width 128, 2 processes

memory: resident sets of a process. "held" is what two updates leave (weights, gradients and Adam's
moments: measured before gradients are dropped) above what there was before the model was built;
"peak" is the most of the second update. malloc gives freed blocks back at once, as
plan_accuracy.py explains. The plan's figures stand beside; "of one" are fractions of one process's.

communication: bytes and calls that FSDP2 makes in an update, against theory: parameters come twice
with resharding (the root's unit once) and once without, and gradients go once; and the share of an
update's time that passes in these calls. gloo on one machine shares the cores with the computation:
that share says nothing of a network.
"""

import argparse
import dataclasses
import gc
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from plan_accuracy import FIXED_MALLOC, ROOT, TINY, Shape, build, resident, samples, train

MEMORY = Shape("50L-50L, width 256", 50, 256, 1024, 4, 8000, 256)
COMMUNICATION = Shape("100L-100L, width 128", 100, 128, 512, 4, 8000, 1024)
SHARDED = "--ddp-backend=fully_sharded"


def with_options(shape: Shape, world: int, *options: str) -> Shape:
    """The shape, trained by fused_adam in so many processes."""
    added = ("--optimizer=fused_adam", f"--distributed-world-size={world}", *options)
    return dataclasses.replace(shape, options=(*shape.options, *added))


def join(rank: int, world: int, port: int) -> None:
    """Meet the other processes."""
    import torch

    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=world)


def peak() -> int:
    """The most bytes of this process since they were last forgotten."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def memory_of_process(shape: Shape) -> dict[str, float]:
    """Bytes held after an update, and the peak of the next."""
    tiny = dataclasses.replace(TINY, options=shape.options)
    warm = build(tiny, "cpu")()
    train(warm, samples(tiny, 1), 1)
    make, batches = build(shape, "cpu"), samples(shape, 1)
    del warm
    gc.collect()
    before = resident()
    trainer = make()
    train(trainer, batches, 1)
    gc.collect()
    held = resident() - before  # gradients are there until the next update begins
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    train(trainer, batches, 1)
    return {"held": held, "peak": peak() - before}


def communication_of_process(shape: Shape) -> dict[str, float]:
    """Bytes, calls and seconds of FSDP2's collectives in one update."""
    import torch.distributed as dist

    found: dict[str, float] = dict.fromkeys(
        ("gathered", "gathers", "reduced", "reductions", "seconds"), 0
    )

    def count(name: str, calls: str, function: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            tensors = [one for one in (*args, *kwargs.values()) if hasattr(one, "element_size")]
            whole = max(tensors, key=lambda tensor: tensor.numel())  # the other is a part of it
            found[name] += whole.numel() * whole.element_size()
            found[calls] += 1
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                found["seconds"] += time.perf_counter() - began

        return counted

    dist.all_gather_single = count("gathered", "gathers", dist.all_gather_single)
    dist.reduce_scatter_single = count("reduced", "reductions", dist.reduce_scatter_single)
    trainer, batches = build(shape, "cpu")(), samples(shape, 1)
    train(trainer, batches, 2)
    found |= dict.fromkeys(found, 0)
    began = time.perf_counter()
    train(trainer, batches, 1)
    found["update"] = time.perf_counter() - began
    found["parameters"] = sum(shape.numel() for shape in trainer.sharded.shapes.values())
    inner = sum(p.numel() for side in ("encoder", "decoder") for p in _layers(trainer, side))
    found["root"] = found["parameters"] - inner
    return found


def _layers(trainer: Any, side: str) -> Any:
    return getattr(trainer.get_model(), side).layers.parameters()


def planned(shape: Shape, world: int) -> Any:
    """The plan's memory of such a process, on a CPU."""
    from fairseq_deepnet.footprint import count, follow, micro_batch
    from fairseq_deepnet.models import account
    from fairseq_deepnet.tools import fairseq_options

    args = fairseq_options.parse_training(shape.arguments())
    model = account.read_model(args, (shape.vocabulary, shape.vocabulary))
    training = account.read_training(args, world, shape.length)
    batch = micro_batch(training, shape.length)
    on_cpu = dataclasses.replace(batch, on_gpu=False, unpadded=True)
    return follow(model, training, count(model), on_cpu)


def in_processes(what: str, shape: Shape, world: int) -> list[dict[str, float]]:
    """What each of so many processes measures."""
    from fairseq_deepnet.tools.training.launch import free_port

    port = free_port()
    words = [sys.executable, __file__, what, "--shape", json.dumps(dataclasses.asdict(shape))]
    processes = [
        subprocess.Popen(
            [*words, "--rank", str(rank), "--world", str(world), "--port", str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            env={**os.environ, **FIXED_MALLOC, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(world)
    ]
    said = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{shape.name}: {world} processes ended with an error")
    return [json.loads(text.splitlines()[-1]) for text in said]


def row(cells: list[object]) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def memory(shape: Shape, worlds: list[int]) -> None:
    """Print a row for each number of processes."""
    row(["processes", "held MiB", "of one", "peak MiB", "plan: held", "plan: peak", "plan / peak"])
    row(["---"] * 7)
    one = None
    for world in worlds:
        whole = with_options(shape, world, *([SHARDED] if world > 1 else []))
        found = in_processes("memory", whole, world)
        held, most = (max(process[name] for process in found) for name in ("held", "peak"))
        one = one or held
        plan = planned(whole, world)
        mib = [f"{size / 2**20:,.0f}" for size in (held, most)]
        expected = [plan.persistent + plan.gradients, plan.peak]
        ours = [f"{size / 2**20:,.0f}" for size in expected]
        ratio = f"{plan.peak / most:.2f}"
        row([world, mib[0], f"{held / one:.2f}", mib[1], *ours, ratio])


def communication(shape: Shape, worlds: list[int]) -> None:
    """Print a row for each way of resharding."""
    head = ["processes", "resharding", "gathered MB", "theory", "calls", "reduced MB", "theory"]
    row([*head, "calls", "all, x parameters", "share of time"])
    row(["---"] * 10)
    for world in worlds:
        for reshard in (True, False):
            words = [SHARDED, *([] if reshard else ["--no-reshard-after-forward"])]
            found = in_processes("communication", with_options(shape, world, *words), world)[0]
            total, root = found["parameters"] * 4, found["root"] * 4
            comes = 2 * total - root if reshard else total
            every = (found["gathered"] + found["reduced"]) / total
            row(
                [
                    *(world, "yes" if reshard else "no"),
                    *(f"{found['gathered'] / 1e6:.1f}", f"{comes / 1e6:.1f}", found["gathers"]),
                    *(f"{found['reduced'] / 1e6:.1f}", f"{total / 1e6:.1f}", found["reductions"]),
                    *(f"{every:.2f}", f"{100 * found['seconds'] / found['update']:.0f} %"),
                ]
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("memory", "communication"))
    parser.add_argument("--worlds", type=int, nargs="+", help="numbers of processes")
    parser.add_argument("--layers", type=int, help="a side")
    parser.add_argument("--options", nargs="*", default=[], help="further ones of fairseq-train")
    for name in ("shape", "rank", "world", "port"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.shape:
        held = json.loads(options.shape)
        shape = Shape(**{**held, "options": tuple(held["options"])})
        sys.path.insert(0, str(ROOT))
        if int(options.world) > 1 or SHARDED in shape.options:
            join(int(options.rank), int(options.world), int(options.port))
        measure = memory_of_process if options.what == "memory" else communication_of_process
        print(json.dumps(measure(shape)))
        return
    shape = MEMORY if options.what == "memory" else COMMUNICATION
    shape = dataclasses.replace(
        shape, layers=options.layers or shape.layers, options=tuple(options.options)
    )
    if options.what == "memory":
        memory(shape, options.worlds or [1, 2, 4])
    else:
        communication(shape, options.worlds or [2])


if __name__ == "__main__":
    main()
