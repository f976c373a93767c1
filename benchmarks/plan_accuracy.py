"""How near the memory estimate of `deepnet plan` comes to what a training really takes.

    python benchmarks/plan_accuracy.py                    # six cases on the CPU, fp32
    python benchmarks/plan_accuracy.py --device cuda      # more of them on a GPU, in fp32 and bf16

Every shape trains two updates through fairseq's Trainer: model, label-smoothed cross-entropy, Adam,
full micro-batches with padding. Measured are the most bytes of tensors that are alive in the second
update: by torch's profiler on the CPU, by torch.cuda.max_memory_allocated on a GPU.
"""

import argparse
import dataclasses
import gc
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

GIB = 2**30


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


def measure(shape: Shape, device: str) -> tuple[float, float]:
    """Peak bytes and seconds of the second update of one shape."""
    import torch

    torch.manual_seed(1)
    options = dict(zip(shape.options, shape.options[1:], strict=False))
    batches = samples(shape, int(options.get("--update-freq", 1)))
    trainer = build(shape, device)()
    train(trainer, batches, 1)
    start = time.perf_counter()
    if device == "cpu":
        peak = profiled(trainer, batches)
        return peak, time.perf_counter() - start
    torch.cuda.reset_peak_memory_stats()
    train(trainer, batches, 1)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated(), time.perf_counter() - start


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


def estimated(shape: Shape, device: str) -> Any:
    """The plan of a shape."""
    from fairseq_deepnet.tools import fairseq_options
    from fairseq_deepnet.tools.planning import estimates

    args = fairseq_options.parse_training(shape.arguments())
    model = estimates.read_model(args, (shape.vocabulary, shape.vocabulary))
    training = estimates.read_training(args, 1 if device == "cuda" else 0, shape.length)
    return estimates.make_plan(model, training, 16, length=shape.length)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of shapes, from 0")
    options = parser.parse_args()
    shapes = CPU_SHAPES if options.device == "cpu" else GPU_SHAPES
    head = ["shape", "options", "parameters", "plan GiB", "measured GiB", "plan / measured"]
    head += ["peak at", "s / update"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head), flush=True)
    ratios = []
    for index in options.only or range(len(shapes)):
        shape, plan = shapes[index], estimated(shapes[index], options.device)
        peak, seconds = measure(shape, options.device)
        gc.collect()
        planned = plan.memory.peak - plan.memory.host  # what is held outside of tensors
        ratios.append(planned / peak)
        cells = [shape.name, " ".join(shape.options), f"{plan.counts.total:,}"]
        cells += [f"{planned / GIB:.3f}", f"{peak / GIB:.3f}", f"{ratios[-1]:.3f}"]
        cells += [max(plan.memory.moments, key=plan.memory.moments.__getitem__), f"{seconds:.1f}"]
        print("| " + " | ".join(cells) + " |", flush=True)
    worst = max(abs(ratio - 1) for ratio in ratios)
    print(f"\nfarthest off: {100 * worst:.1f} %")


if __name__ == "__main__":
    main()
