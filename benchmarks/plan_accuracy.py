"""Compare the memory estimate of `deepnet plan` with a training run.

    python benchmarks/plan_accuracy.py                    # on the CPU, fp32
    python benchmarks/plan_accuracy.py --device cuda      # on a GPU, fp32 and bf16

Every shape trains two updates through fairseq's Trainer with full micro-batches that have padding.
The measurement is the peak of live tensor bytes in the second update: by torch's profiler on the
CPU, by torch.cuda.max_memory_allocated on a GPU.
"""

import argparse
import dataclasses
import gc
import sys
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
SHAPES = (
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
    return Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))


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


def measure(shape: Shape, device: str) -> float:
    """Peak bytes of the second update, which has the optimiser's state from its start."""
    import torch

    torch.manual_seed(1)
    batches = samples(shape, 2 if "--update-freq" in shape.options else 1)
    trainer = build(shape, device)
    trainer.train_step(batches)
    if device == "cpu":
        return profiled(trainer, batches)
    torch.cuda.reset_peak_memory_stats()
    trainer.train_step(batches)
    return torch.cuda.max_memory_allocated()


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
        trainer.train_step(batches)
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
    device = parser.parse_args().device
    head = ["shape", "options", "parameters", "plan GiB", "measured GiB", "plan / measured"]
    print("| " + " | ".join([*head, "peak at"]) + " |\n|" + "---|" * 7, flush=True)
    for shape in SHAPES:
        for precision in ((),) if device == "cpu" else ((), ("--bf16",)):
            options = (*shape.options, *precision)
            case = dataclasses.replace(shape, options=options)
            plan, peak = estimated(case, device), measure(case, device)
            planned = plan.memory.peak - plan.memory.host  # bytes outside of tensors
            moment = max(plan.memory.moments, key=plan.memory.moments.__getitem__)
            cells = [case.name, " ".join(options), f"{plan.counts.total:,}"]
            cells += [f"{planned / GIB:.3f}", f"{peak / GIB:.3f}", f"{planned / peak:.3f}", moment]
            print("| " + " | ".join(cells) + " |", flush=True)
            gc.collect()


if __name__ == "__main__":
    main()
