"""Process of one system, which builds fairseq's Trainer and runs updates on request.

`race` starts the process, writes orders as lines of JSON and reads one line per answer. The process
of the stock system never imports the plugin.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from side_by_side.systems import Shape, System

PRODUCTS = ("gemm", "cutlass", "nvjet", "aten::mm", "aten::bmm", "aten::addmm")
"""Parts of the names of kernels and operations that multiply matrices."""


def load(system: System) -> None:
    """Import the modules that register the system with fairseq."""
    import fairseq  # noqa: F401

    if system.kind == "ours":
        sys.path.insert(0, str(system.plugin))
        import fairseq_deepnet.models  # noqa: F401
    if system.kind == "torchscale":
        import side_by_side.torchscale_model  # noqa: F401


def build(system: System, shape: Shape, device: str = "cpu") -> Any:
    """Build fairseq's Trainer of a shape on generated sentences, after `load`."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.trainer import Trainer

    from side_by_side.sentences import MadeUpTask

    words = [*system.arguments(shape), *(["--cpu"] if device == "cpu" else [])]
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    args.tpu = False  # fairseq's parser assumes that --bf16 needs a TPU
    cfg = convert_namespace_to_omegaconf(args)
    task = MadeUpTask(shape.vocabulary)
    model = ARCH_MODEL_REGISTRY[args.arch].build_model(args, task)
    return Trainer(cfg, task, model, task.build_criterion(cfg.criterion))


def batches(trainer: Any) -> Iterator[list[Any]]:
    """Yield the arguments of Trainer.train_step from fairseq's iterators, epoch after epoch."""
    from fairseq.data import iterators

    epochs = trainer.get_train_iterator(epoch=1, load_dataset=False)
    while True:
        yield from iterators.GroupedIterator(epochs.next_epoch_itr(), 1)


class Worker:
    """A system that is ready to train."""

    def __init__(self, system: System, shape: Shape, device: str = "cpu") -> None:
        load(system)
        import torch

        torch.manual_seed(1)
        # torch's own initialisation is not measured
        tiny = build(system, Shape(1, 64, 100, 256, shape.precision), device)
        tiny.train_step(next(batches(tiny)))
        del tiny
        gc.collect()
        self.device = device
        self.synchronise = torch.cuda.synchronize if device == "cuda" else lambda: None
        if device == "cuda":
            self.base = torch.cuda.memory_allocated()
        else:
            pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
            self.base = pages * os.sysconf("SC_PAGE_SIZE")
        self.trainer = build(system, shape, device)
        self.batches = batches(self.trainer)
        self.on_device = 0
        if device == "cuda":  # fairseq's trainer resets the peak at the end of each update
            step = self.trainer.optimizer.step

            def remembering(*args: Any, **kwargs: Any) -> Any:
                result = step(*args, **kwargs)
                self.on_device = max(self.on_device, torch.cuda.max_memory_allocated())
                return result

            self.trainer.optimizer.step = remembering

    def step(self) -> dict[str, Any]:
        """Run one update; return its seconds, tokens, loss, and the peak memory in bytes.

        The peak is that of tensors on a GPU and of the resident set on a CPU, minus the memory
        before the model was built.
        """
        wall, cpu = time.perf_counter(), time.process_time()
        samples = next(self.batches)
        log = self.trainer.train_step(samples)
        self.synchronise()
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {
            "wall": time.perf_counter() - wall,
            "cpu": time.process_time() - cpu,
            "tokens": int(samples[0]["ntokens"]),
            "loss": float((log or {}).get("loss", float("nan"))),
            "peak": max(0, (self.on_device or resident) - self.base),
        }

    def kernels(self, updates: int = 2) -> dict[str, float]:
        """Profile updates; return the kernels' number and seconds, and those of matrix products.

        On a CPU, torch's operations take the place of kernels.
        """
        from torch.profiler import ProfilerActivity, profile

        cuda = self.device == "cuda"
        activity = ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU
        with profile(activities=[activity]) as profiler:
            for _ in range(updates):
                self.step()
        totals = {"kernels": 0.0, "seconds": 0.0, "products": 0.0}
        for event in profiler.key_averages():
            if cuda and (event.is_user_annotation or not event.self_device_time_total):
                continue  # a range around kernels, or a call of the CPU
            seconds = event.self_device_time_total if cuda else event.self_cpu_time_total
            totals["kernels"] += event.count / updates
            totals["seconds"] += seconds / 1e6 / updates
            if any(name in event.key.lower() for name in PRODUCTS):
                totals["products"] += seconds / 1e6 / updates
        return totals


def main() -> None:
    """Execute orders until standard input ends; standard output is only for answers."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.disable(logging.WARNING)  # fairseq describes each model at length
    warnings.simplefilter("ignore")
    first = json.loads(sys.stdin.readline())
    system = System(**{**first["system"], "plugin": Path(first["system"]["plugin"])})
    worker = Worker(system, Shape(**first["shape"]), first["device"])
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)["do"]
        answer = worker.kernels() if order == "kernels" else worker.step()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
