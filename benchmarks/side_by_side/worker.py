"""Process of one system: builds fairseq's Trainer and runs updates on request.

`race` starts it, writes one line of JSON per order and reads one line per answer. The process of
the stock system never imports the plugin.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from side_by_side.memory import most_resident, resident
from side_by_side.parts import Stopwatch, watch
from side_by_side.systems import Shape, System

PRODUCTS = ("gemm", "cutlass", "nvjet", "aten::mm", "aten::bmm", "aten::addmm")
"""Parts of the names of kernels and operations that multiply matrices."""
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


def load(system: System) -> None:
    """Import what registers the system with fairseq."""
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
    args.tpu = False  # fairseq's parser takes --bf16 for a TPU's
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
    """One system, ready to train.

    Arguments:
        clock: one of CLOCKS, for the phases
        device: cpu or cuda
        warm: updates of a tiny model before, so that torch's initialisation is not charged
    """

    def __init__(self, system: System, shape: Shape, clock: str, device: str = "cpu") -> None:
        load(system)
        import torch

        torch.manual_seed(1)
        tiny = build(system, Shape(1, 64, 100, 256, shape.precision), device)
        tiny.train_step(next(batches(tiny)))
        del tiny
        gc.collect()
        self.device = device
        self.synchronise = torch.cuda.synchronize if device == "cuda" else lambda: None
        self.base = torch.cuda.memory_allocated() if device == "cuda" else resident()
        start = time.perf_counter()
        self.trainer = build(system, shape, device)
        self.parameters = sum(p.numel() for p in self.trainer.get_model().parameters())
        self.built = time.perf_counter() - start
        cfg = self.trainer.cfg.common
        self.precision = "bf16" if cfg.bf16 else "fp16" if cfg.fp16 else "fp32"
        self.stopwatch = Stopwatch(CLOCKS[clock])
        if device == "cpu":  # parts would have to wait for a GPU, which slows it down
            watch(self.trainer, self.stopwatch)
        self.batches = batches(self.trainer)
        self.on_device = 0
        if device == "cuda":  # before fairseq's trainer forgets it, at the end of each update
            step = self.trainer.optimizer.step

            def remembering(*args: Any, **kwargs: Any) -> Any:
                done = step(*args, **kwargs)
                self.on_device = max(self.on_device, torch.cuda.max_memory_allocated())
                return done

            self.trainer.optimizer.step = remembering

    def peak(self) -> int:
        """Return the peak of bytes since before the model was built: tensors on a GPU, the resident
        set on a CPU.
        """
        most = self.on_device if self.device == "cuda" else most_resident()
        return max(0, most - self.base)

    def step(self) -> dict[str, Any]:
        """Run one update; return its seconds in all and by phase, its batch, and the memory."""
        wall, cpu = time.perf_counter(), time.process_time()
        self.stopwatch.begin("data")
        samples = next(self.batches)
        self.stopwatch.end()
        log = self.trainer.train_step(samples)
        self.synchronise()
        sample = samples[0]
        source, lengths = (sample["net_input"][name] for name in ("src_tokens", "src_lengths"))
        ntokens = int(sample["ntokens"])
        return {
            "wall": time.perf_counter() - wall,
            "cpu": time.process_time() - cpu,
            "parts": self.stopwatch.take(),
            "tokens": ntokens,
            "sizes": [*source.shape, sample["target"].shape[1], int(lengths.sum()), ntokens],
            "loss": float((log or {}).get("loss", float("nan"))),
            "peak": self.peak(),
            "parameters": self.parameters,
            "precision": self.precision,
        }

    def kernels(self, updates: int = 2) -> dict[str, float]:
        """Profile an update: seconds of its kernels and of matrix products among them, and their
        number; on a CPU, of its operations.
        """
        from torch.profiler import ProfilerActivity, profile

        cuda = self.device == "cuda"
        activity = ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU
        with profile(activities=[activity]) as profiler:
            for _ in range(updates):
                self.step()
        found = {"kernels": 0.0, "seconds": 0.0, "products": 0.0}
        for event in profiler.key_averages():
            if cuda and (event.is_user_annotation or not event.self_device_time_total):
                continue  # a range around kernels, or a call of the CPU
            seconds = event.self_device_time_total if cuda else event.self_cpu_time_total
            found["kernels"] += event.count / updates
            found["seconds"] += seconds / 1e6 / updates
            if any(name in event.key.lower() for name in PRODUCTS):
                found["products"] += seconds / 1e6 / updates
        return found


def answer(order: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """Execute an order."""
    if order["do"] == "limits":
        from side_by_side.limits import Limits

        state["limits"] = Limits(Shape(**order["shape"]), CLOCKS[order["clock"]])
        return {}
    if order["do"] == "products":
        return dict(state["limits"].measure(*order["sizes"]))
    if order["do"] == "build":
        system = System(**{**order["system"], "plugin": Path(order["system"]["plugin"])})
        shape = Shape(**order["shape"])
        state["worker"] = Worker(system, shape, order["clock"], order["device"])
        return {"seconds": state["worker"].built}
    if order["do"] == "kernels":
        return dict(state["worker"].kernels())
    return dict(state["worker"].step())


def main() -> None:
    """Execute orders until standard input ends; standard output is only for answers."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.disable(logging.WARNING)  # fairseq describes each model at length
    warnings.simplefilter("ignore")
    state: dict[str, Any] = {}
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line), state)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
