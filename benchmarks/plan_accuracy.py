"""How near the memory estimate of `deepnet plan` comes to what a training really takes.

    python benchmarks/plan_accuracy.py                    # six cases on the CPU, fp32
    python benchmarks/plan_accuracy.py --device cuda      # more of them on a GPU, in fp32 and bf16

Every shape trains two updates in a process of its own, through fairseq's Trainer: model,
label-smoothed cross-entropy, Adam, full micro-batches with padding. A tiny model is trained before,
so that what torch loads on first use is not charged to the shape.

On a GPU the measured peak is torch.cuda.max_memory_allocated. On the CPU it is the peak resident
set (ru_maxrss) less the resident set before the model was built. glibc's malloc keeps freed blocks
below a threshold that it raises by itself, up to 32 MiB: left alone, the resident set shows what it
hoards as much as what is alive. So the processes run with MALLOC_MMAP_THRESHOLD_ and
MALLOC_TRIM_THRESHOLD_ fixed at 64 KiB, which gives a block back to the system when it is freed.
`--profile` adds a count that no allocator can blur: the most bytes of tensors alive, from torch's
profiler. `--malloc default` shows what malloc's own ways add: with --checkpoint-activations the
18L-18L shape then holds 0.98 GiB where 0.56 GiB are alive.
"""

import argparse
import dataclasses
import gc
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

GIB = 2**30
FIXED_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@dataclasses.dataclass(frozen=True)
class Shape:
    """A training to measure; sentences have `length` tokens, padding included."""

    name: str
    layers: int
    width: int
    ffn: int
    heads: int
    vocabulary: int
    max_tokens: int
    length: int = 32
    options: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """fairseq-train's arguments."""
        words = ["DATA", "--arch", "deepnet_transformer", "--optimizer", "adam"]
        words += ["--lr", "1e-4", "--dropout", "0.1"]
        words += ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]
        words += ["--share-all-embeddings", "--max-tokens", str(self.max_tokens)]
        for side in ("encoder", "decoder"):
            words += [f"--{side}-layers", str(self.layers), f"--{side}-embed-dim", str(self.width)]
            words += [f"--{side}-ffn-embed-dim", str(self.ffn)]
            words += [f"--{side}-attention-heads", str(self.heads)]
        return [*words, *self.options]


CHECKPOINT = ("--checkpoint-activations",)
TINY = Shape("tiny", 2, 64, 128, 2, 100, 256)
CPU_SHAPES = (
    Shape("18L-18L, width 256", 18, 256, 1024, 4, 8000, 1024),
    Shape("18L-18L, width 256", 18, 256, 1024, 4, 8000, 1024, options=CHECKPOINT),
    Shape("6L-6L, width 512, 32k words", 6, 512, 2048, 8, 32000, 1024),
    Shape("100L-100L, width 64", 100, 64, 128, 2, 8000, 1024),
    Shape("100L-100L, width 64", 100, 64, 128, 2, 8000, 1024, options=CHECKPOINT),
    Shape(
        "6L-6L, width 256, attention dropout",
        *(6, 256, 1024, 4, 8000, 1024, 128),
        options=("--attention-dropout", "0.1", "--update-freq", "2"),
    ),
)
GPU_SHAPES = tuple(
    dataclasses.replace(shape, options=(*shape.options, *precision))
    for shape in (
        *CPU_SHAPES[:5],
        Shape("100L-100L, width 512", 100, 512, 2048, 8, 32000, 4096, options=CHECKPOINT),
    )
    for precision in ((), ("--bf16",), ("--memory-efficient-bf16",))
)


def build(shape: Shape, device: str) -> Any:
    """fairseq's Trainer of a shape, as fairseq-train builds it."""
    from fairseq.data import Dictionary
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.tasks.translation import TranslationTask
    from fairseq.trainer import Trainer

    from fairseq_deepnet.tools import fairseq_options

    place = ["--cpu"] if device == "cpu" else []
    args = fairseq_options.parse_training([*shape.arguments(), *place])
    cfg = convert_namespace_to_omegaconf(args)
    words = Dictionary()
    for number in range(shape.vocabulary - len(words)):
        words.add_symbol(f"w{number}")
    task = TranslationTask(cfg.task, words, words)
    criterion = task.build_criterion(cfg.criterion)
    gc.collect()

    def trainer() -> Any:
        return Trainer(cfg, task, task.build_model(cfg.model), criterion)

    return trainer


def samples(shape: Shape, freq: int) -> list[dict[str, Any]]:
    """Micro-batches as fairseq collates them: sources padded on the left, targets on the right."""
    import torch

    generator = torch.Generator().manual_seed(1)
    size = (2, shape.max_tokens // shape.length, shape.length)
    batches = []
    for _ in range(freq):
        source, target = torch.randint(4, shape.vocabulary, size, generator=generator)
        source[1::2, : shape.length // 8] = 1
        target[1::2, -(shape.length // 8) :] = 1
        net_input = {
            "src_tokens": source,
            "src_lengths": source.ne(1).sum(1),
            "prev_output_tokens": target.roll(1, dims=1),
        }
        tokens = int(target.ne(1).sum())
        batch = {"id": torch.arange(size[1]), "nsentences": size[1], "ntokens": tokens}
        batches.append({**batch, "net_input": net_input, "target": target})
    return batches


def train(trainer: Any, batches: list[dict[str, Any]], updates: int) -> None:
    """A few updates; the second has the optimiser's state from its start."""
    for _ in range(updates):
        trainer.train_step(batches)


def resident() -> int:
    """Bytes of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure(shape: Shape, device: str, profile: bool) -> dict[str, float]:
    """Peak bytes and seconds an update of one shape, in this process."""
    import torch

    torch.manual_seed(1)
    options = [
        int(word)
        for flag, word in zip(shape.options, shape.options[1:], strict=False)
        if flag == "--update-freq"
    ]
    freq = options[0] if options else 1
    tiny = dataclasses.replace(TINY, options=shape.options)
    warm = build(tiny, device)()
    train(warm, samples(tiny, freq), 2)
    make, batches = build(shape, device), samples(shape, freq)
    del warm
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if device == "cuda" else resident()
    most_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    trainer = make()
    train(trainer, batches, 1)
    found: dict[str, float] = {}
    start = time.perf_counter()
    train(trainer, batches, 1)
    if device == "cuda":
        torch.cuda.synchronize()
        found["peak"] = torch.cuda.max_memory_allocated() - before
    else:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if most == most_before:
            raise SystemExit(f"{shape.name}: smaller than the warm-up: nothing to measure")
        found["peak"] = most - before
    found["seconds"] = time.perf_counter() - start
    if profile:
        found["alive"] = profiled(trainer, batches)
    return found


def profiled(trainer: Any, batches: list[dict[str, Any]]) -> float:
    """The most bytes of tensors alive in an update, by torch's profiler."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as run_profiler

    model = trainer.get_model()
    trainer.zero_grad()  # the profiler does not see blocks go that it has not seen come
    tensors = [*model.parameters(), *model.buffers()]
    for state in trainer.optimizer.optimizer.state.values():
        tensors += [value for value in state.values() if hasattr(value, "untyped_storage")]
    masters = [
        p for p in trainer.optimizer.optimizer.param_groups[0]["params"] if p.grad is not None
    ]
    tensors += [tensor for p in masters for tensor in (p, p.grad)]
    there = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    with run_profiler(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train(trainer, batches, 1)
    now = most = sum(there.values())
    events = profiler.profiler.kineto_results.events()
    moves = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    for _, size in sorted(moves, key=lambda move: move[0]):
        now += size
        most = max(most, now)
    return most


def in_own_process(index: int, options: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", str(index), "--device", options.device]
    command += ["--profile"] if options.profile else []
    malloc = FIXED_MALLOC if options.malloc == "fixed" else {}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, encoding="utf-8", env={**os.environ, **malloc}
    )
    if done.returncode:
        raise SystemExit(f"shape {index}: the training ended with status {done.returncode}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def estimated(shape: Shape, device: str) -> Any:
    """The plan of a shape."""
    from fairseq_deepnet.models import account
    from fairseq_deepnet.tools import fairseq_options
    from fairseq_deepnet.tools.planning import estimates

    args = fairseq_options.parse_training(shape.arguments())
    model = account.read_model(args, (shape.vocabulary, shape.vocabulary))
    training = account.read_training(args, 1 if device == "cuda" else 0, shape.length)
    return estimates.make_plan(model, training, 16, 1, shape.length)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--profile", action="store_true", help="also count bytes alive (CPU)")
    parser.add_argument("--malloc", choices=("fixed", "default"), default="fixed")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of shapes, from 0")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    shapes = CPU_SHAPES if options.device == "cpu" else GPU_SHAPES
    if options.one is not None:
        found = measure(shapes[options.one], options.device, options.profile)
        print(json.dumps(found))
        return
    head = ["shape", "options", "parameters", "plan GiB", "measured GiB", "plan / measured"]
    head += ["alive GiB"] if options.profile else []
    head += ["peak at", "s / update"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head), flush=True)
    ratios = []
    for index in options.only or range(len(shapes)):
        shape, plan = shapes[index], estimated(shapes[index], options.device)
        found = in_own_process(index, options)
        ratios.append(plan.memory.peak / found["peak"])
        cells = [shape.name, " ".join(shape.options), f"{plan.parameters:,}"]
        cells += [f"{plan.peak_gib:.3f}", f"{found['peak'] / GIB:.3f}", f"{ratios[-1]:.3f}"]
        cells += [f"{found['alive'] / GIB:.3f}"] if options.profile else []
        cells += [plan.memory.peak_moment, f"{found['seconds']:.1f}"]
        print("| " + " | ".join(cells) + " |", flush=True)
    worst = max(abs(ratio - 1) for ratio in ratios)
    print(f"\nfarthest off: {100 * worst:.1f} %")


if __name__ == "__main__":
    main()
