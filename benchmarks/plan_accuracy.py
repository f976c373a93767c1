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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Shape:
    """A training run to measure; sentences have `length` tokens, including padding."""

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
        """Return fairseq-train's arguments."""
        words = ["DATA", "--arch=deepnet_transformer", "--optimizer=adam", "--lr=1e-4"]
        words += ["--dropout=0.1", "--criterion=label_smoothed_cross_entropy"]
        words += ["--label-smoothing=0.1", "--share-all-embeddings"]
        words += [f"--max-tokens={self.max_tokens}"]
        for side in ("encoder", "decoder"):
            words += [f"--{side}-layers={self.layers}", f"--{side}-embed-dim={self.width}"]
            words += [f"--{side}-ffn-embed-dim={self.ffn}"]
            words += [f"--{side}-attention-heads={self.heads}"]
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
    """Build fairseq's Trainer of a shape as fairseq-train does."""
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


def samples(shape: Shape, count: int) -> list[dict[str, Any]]:
    """Return micro-batches with fairseq's padding: on the left of sources, the right of targets."""
    import torch

    generator = torch.Generator().manual_seed(1)
    size = (2, shape.max_tokens // shape.length, shape.length)
    batches = []
    for _ in range(count):
        source, target = torch.randint(4, shape.vocabulary, size, generator=generator)
        source[1::2, : shape.length // 8] = 1
        target[1::2, -(shape.length // 8) :] = 1
        net_input = {"src_tokens": source, "src_lengths": source.ne(1).sum(1)}
        net_input["prev_output_tokens"] = target.roll(1, dims=1)
        batch = {"id": torch.arange(size[1]), "nsentences": size[1], "net_input": net_input}
        batches.append(batch | {"ntokens": int(target.ne(1).sum()), "target": target})
    return batches


def measure(shape: Shape, device: str) -> float:
    """Return the peak bytes of the second update, when the optimiser's state already exists."""
    import torch

    torch.manual_seed(1)
    batches = samples(shape, 2 if "--update-freq" in shape.options else 1)
    trainer = build(shape, device)
    trainer.train_step(batches)
    if device == "cpu":
        return profile_update(trainer, batches)
    torch.cuda.reset_peak_memory_stats()
    trainer.train_step(batches)
    return torch.cuda.max_memory_allocated()


def profile_update(trainer: Any, batches: list[dict[str, Any]]) -> float:
    """Return the peak bytes of live tensors in an update, by torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    model = trainer.get_model()
    trainer.zero_grad()  # the profiler ignores freed blocks whose allocation it has not recorded
    tensors = [*model.parameters(), *model.buffers()]
    for state in trainer.optimizer.optimizer.state.values():
        tensors += [value for value in state.values() if hasattr(value, "untyped_storage")]
    for parameter in trainer.optimizer.optimizer.param_groups[0]["params"]:
        if parameter.grad is not None:
            tensors += [parameter, parameter.grad]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        trainer.train_step(batches)
    now = peak = sum(storages.values())
    events = profiler.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    for _, size in sorted(changes, key=lambda change: change[0]):
        now += size
        peak = max(peak, now)
    return peak


def estimated(shape: Shape, device: str) -> Any:
    """Return the plan of a shape."""
    from fairseq_deepnet.tools import fairseq_options
    from fairseq_deepnet.tools.planning import estimates

    args = fairseq_options.parse_training(shape.arguments())
    model = estimates.read_model(args, (shape.vocabulary, shape.vocabulary))
    training = estimates.read_training(args, 1 if device == "cuda" else 0, shape.length)
    return estimates.make_plan(model, training, 16, length=shape.length)


def main() -> None:
    """Print a row per shape and precision."""
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
            planned = plan.memory.peak - plan.memory.host  # bytes that are not in tensors
            moment = max(plan.memory.moments, key=plan.memory.moments.__getitem__)
            cells = [case.name, " ".join(options), f"{plan.counts.total:,}"]
            cells += [f"{planned / GIB:.3f}", f"{peak / GIB:.3f}", f"{planned / peak:.3f}", moment]
            print("| " + " | ".join(cells) + " |", flush=True)
            gc.collect()


if __name__ == "__main__":
    main()
