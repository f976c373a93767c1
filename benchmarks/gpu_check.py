r"""On a GPU: are half precision's numbers right, how fast is training, and what bounds it.

    python benchmarks/gpu_check.py                            # everything, within 25 minutes
    python benchmarks/gpu_check.py --results gpu.json         # go on where a run was cut off
    python benchmarks/gpu_check.py --device cpu --layers 1 --width 64 --tokens 256 \
        --vocabulary 100 --precisions bf16 --rounds 2         # the same logic, anywhere

Correctness, 6L-6L without dropout: loss, logits and gradients of one padded batch in bf16 and fp16
against fp32 (and of fp32 against stock fairseq's), each by its distance over the size of what it
should be. Ours with --residual-scheme post-ln has the weights of the stock model, which shows what
the precision itself costs; ours may be at the most 1.5 times as far off. DeepNorm's has no such
yardstick in fairseq; its row is held to the same distances.

Training, 512/2048/8 and batches of 4,096 positions unless told otherwise: fairseq's stock
`transformer` against ours, plain and with --compile, as in training_speed.py: updates in turn where
the GPU's memory holds them all ("in turn"), one system after the other where it does not; then
"speed" is the ratio of medians. "kernels"
is the time of the GPU's kernels in an update, by torch's profiler, over the time of an update
without the profiler: near 100 % the GPU is what bounds it, far below it waits for Python.
"products" is the part of the kernels' time that multiplies matrices. On the CPU both are of torch's
operations, and "peak" is the resident set.

One Markdown table each. Every finished line is kept in --results, and a further run with the same
file measures what is missing. Exit status 1 where a number is off, 2 without a GPU.
"""

import argparse
import copy
import dataclasses
import gc
import json
import logging
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from side_by_side import tables
from side_by_side.race import Process, WorkerError, in_turn, start
from side_by_side.systems import Shape, System, estimated_gib

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FP32_DISTANCE = 1e-4  # sums are made in another order
ALLOWED = 1.5
PADDING = 1
LOSS_SCALE = 128.0  # fairseq's first for --fp16
SYSTEMS = (
    System("stock", "stock"),
    System("ours", "ours"),
    System("ours, compiled", "ours", ("--compile",)),
)
TRAINING_HEAD = ["model", "precision", "system", "s / update", "tokens / s", "speed", "in turn"]
TRAINING_HEAD += ["kernels", "kernels / update", "products", "peak GiB"]
CORRECT_HEAD = ["model", "precision", "of", "against", "loss", "logits", "gradients", "worst", ""]


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Of one batch: the loss a token, the logits where there are words, and the gradients."""

    loss: float
    logits: torch.Tensor
    gradients: dict[str, torch.Tensor]


def numbers(model: Any, criterion: Any, sample: dict[str, Any], dtype: torch.dtype) -> Numbers:
    """What a copy of the model in `dtype` computes, on the host in fp32."""
    model = copy.deepcopy(model).to(dtype).train()
    scale = LOSS_SCALE if dtype is torch.float16 else 1.0
    loss, size, _ = criterion(model, sample)
    (loss * scale).backward()
    with torch.no_grad():
        words = sample["target"].ne(PADDING)
        logits = model(**sample["net_input"])[0][words].float().cpu()
    gradients = {
        name: p.grad.float().cpu() / scale / float(size) for name, p in model.named_parameters()
    }
    return Numbers(float(loss.detach()) / float(size), logits, gradients)


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """|found - wanted| / |wanted|."""
    return float((found - wanted).norm() / wanted.norm().clamp_min(1e-30))


def distances(found: Numbers, wanted: Numbers) -> dict[str, float]:
    """Of the loss, the logits, all gradients as one vector, and the worst parameter's gradient.

    Keys' biases are not looked at: what they add is the same for all keys of a query, so that their
    gradient is zero but for rounding.
    """
    names = [name for name in wanted.gradients if not name.endswith("k_proj.bias")]
    whole = [torch.cat([n.gradients[name].flatten() for name in names]) for n in (found, wanted)]
    return {
        "loss": abs(found.loss / wanted.loss - 1),
        "logits": distance(found.logits, wanted.logits),
        "gradients": distance(*whole),
        "worst": max(distance(found.gradients[n], wanted.gradients[n]) for n in names),
    }


def padded_batch(trainer: Any) -> dict[str, Any]:
    """The batch whose sources have the most padding, on the device."""
    from side_by_side.worker import batches

    several = batches(trainer)
    chosen = max(
        (next(several)[0] for _ in range(20)),
        key=lambda sample: int(sample["net_input"]["src_tokens"].eq(PADDING).sum()),
    )
    return dict(trainer._prepare_sample(chosen)[0])


def correctness(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A line for each precision of ours and of stock fairseq's model, with and without its weights.

    A line's `right` is None where it only serves to compare.
    """
    from side_by_side.worker import build, load

    shape = Shape(min(6, *options.layers), options.width, options.vocabulary, 1024)
    shape = dataclasses.replace(shape, tokens=min(1024, options.tokens))
    plain = ("--dropout=0",)
    stock, ours = System("stock", "stock", plain), System("ours", "ours", plain)
    post_ln = dataclasses.replace(ours, options=("--dropout=0", "--residual-scheme=post-ln"))
    load(ours)
    trainers = {
        name: build(system, shape, options.device, 20)
        for name, system in {
            "stock": stock,
            "ours, post-ln": post_ln,
            "ours, deepnorm": ours,
        }.items()
    }
    sample = padded_batch(trainers["stock"])
    models = {name: trainer.get_model() for name, trainer in trainers.items()}
    models["ours, post-ln"].load_state_dict(models["stock"].state_dict())
    exact: dict[str, Numbers] = {}
    lines, yardstick = [], {}
    for precision in ("fp32", *options.precisions):
        for name, model in models.items():
            criterion = trainers[name].get_criterion()
            found = numbers(model, criterion, sample, TYPES[precision])
            if precision == "fp32":
                exact[name] = found
            if precision == "fp32" and name != "ours, post-ln":
                continue
            against = "stock, fp32" if precision == "fp32" else "itself, fp32"
            off = distances(found, exact["stock" if precision == "fp32" else name])
            right = None
            if precision == "fp32":
                right = max(off["loss"], off["logits"], off["gradients"]) < FP32_DISTANCE
            elif name == "stock":
                yardstick[precision] = off
            else:
                limit = yardstick[precision]
                right = all(off[k] <= ALLOWED * limit[k] for k in ("logits", "gradients"))
            lines.append({"model": shape.name, "precision": precision, "of": name})
            lines[-1] |= {"against": against, **off, "right": right}
    del trainers, models, model
    gc.collect()
    torch.cuda.empty_cache()  # nothing without a GPU
    return lines


def correct_row(line: dict[str, Any]) -> str:
    cells = [line[key] for key in ("model", "precision", "of", "against")]
    cells += [f"{line[key]:.1e}" for key in ("loss", "logits", "gradients", "worst")]
    return tables.line([*cells, {None: "", True: "ok", False: "**off**"}[line["right"]]])


def free_gib(options: argparse.Namespace) -> float:
    """Memory of the device that is free now."""
    if options.device == "cuda":
        return float(torch.cuda.mem_get_info()[0] / 2**30)
    from side_by_side.memory import available_gib

    return available_gib()


def warm(system: System, shape: Shape, options: argparse.Namespace) -> Process:
    """A process that has made some updates: a GPU's libraries and torch.compile need several."""
    updates = 2 if options.device == "cpu" else 8
    return start(system, shape, "wall", options.threads, updates, None, options.device)


def training(shape: Shape, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A line a system; what fails has a line that says so."""
    gpus = 1 if options.device == "cuda" else 0
    entered = [system for system in SYSTEMS if options.compile or "--compile" not in system.options]
    needed = {system.name: estimated_gib(system, shape, gpus) for system in entered}
    together = sum(needed.values()) < free_gib(options)
    lines: dict[str, dict[str, Any]] = {}
    found: dict[str, list[dict[str, Any]]] = {}
    groups = [entered] if together else [[system] for system in entered]
    for number, group in enumerate(groups):
        running: dict[str, Process] = {}
        try:
            for system in group:
                try:
                    running[system.name] = warm(system, shape, options)
                except WorkerError as error:
                    lines[system.name] = {"error": str(error)}
            first = number * options.rounds
            rounds = list(in_turn(running, range(first, first + options.rounds)))
            for name in running:
                answers = found[name] = [answered[name] for answered in rounds]
                lines[name] = {
                    "seconds": [answer["wall"] for answer in answers],
                    "tokens": statistics.median(a["tokens"] / a["wall"] for a in answers),
                    "peak": max(answer["peak"] for answer in answers),
                    "together": together,
                    "profile": running[name].ask("kernels"),
                }
        except WorkerError as error:
            for system in group:
                lines.setdefault(system.name, {"error": str(error)})
        finally:
            for process in running.values():
                process.end()
    base = lines[entered[0].name]
    for name, line in lines.items():
        if "error" not in base and "error" not in line:
            line["speed"] = tables.speed(found[entered[0].name], found[name], "wall")
    about = {"model": shape.name, "precision": shape.precision}
    return [{**about, "system": system.name, **lines[system.name]} for system in entered]


def training_row(line: dict[str, Any]) -> str:
    cells = [line[key] for key in ("model", "precision", "system")]
    if "error" in line:
        return tables.line([*cells, line["error"], *[""] * (len(TRAINING_HEAD) - 4)])
    kernels, seconds = line["profile"], statistics.median(line["seconds"])
    cells += [f"{seconds:.3f}", f"{line['tokens']:,.0f}"]
    cells += [f"{line['speed']:.2f}" if "speed" in line else ""]
    cells += ["yes" if line["together"] else "no", f"{kernels['seconds'] / seconds:.0%}"]
    cells += [f"{kernels['kernels']:,.0f}", f"{kernels['products'] / kernels['seconds']:.0%}"]
    return tables.line([*cells, f"{line['peak'] / 2**30:.2f}"])


class Results:
    """Finished lines by what they measure, kept in a file.

    Arguments:
        path: of the file; None keeps nothing
        about: what the lines depend on: a file of anything else is refused
    """

    def __init__(self, path: Path | None, about: dict[str, Any]) -> None:
        self.path, self.content = path, {"about": about, "done": {}}
        if path is not None and path.exists():
            self.content = json.loads(path.read_text())
            if self.content["about"] != about:
                raise SystemExit(f"--results {path}: of other settings or another device; move it")

    def get(self, key: str) -> Any:
        return self.content["done"].get(key)

    def put(self, key: str, lines: Any) -> None:
        from fairseq_deepnet.provenance import write_json

        self.content["done"][key] = lines
        if self.path is not None:
            write_json(self.path, self.content)


def parse() -> argparse.Namespace:
    """The command line; ends where there is no GPU."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--layers", type=int, nargs="+", default=[18, 50, 100], help="a side")
    parser.add_argument("--width", type=int, default=512, help="(%(default)s)")
    parser.add_argument("--vocabulary", type=int, default=32000, help="(%(default)s)")
    parser.add_argument("--tokens", type=int, default=4096, help="of a batch (%(default)s)")
    parser.add_argument("--precisions", nargs="+", choices=TYPES, default=["bf16", "fp16"])
    parser.add_argument("--rounds", type=int, default=15, help="updates of each (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU (%(default)s)")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--minutes", type=float, default=25, help="begin nothing that ends later")
    parser.add_argument("--results", type=Path, metavar="FILE", help="finished lines")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "gpu_check: torch sees no CUDA device here; run it on a machine with a GPU, or try its"
            " logic with --device cpu (see --help)",
            file=sys.stderr,
        )
        raise SystemExit(2)
    if options.device == "cpu" and "fp16" in options.precisions:
        parser.error("--precisions fp16: fairseq's --fp16 needs a GPU; give --precisions bf16")
    options.precisions = [name for name in options.precisions if name != "fp32"]
    return options


def main() -> int:
    """Correctness, then training from the shallowest shape to the deepest."""
    options, began = parse(), time.monotonic()
    logging.disable(logging.WARNING)  # fairseq describes each model at length
    warnings.simplefilter("ignore")
    cuda = options.device == "cuda"
    device = torch.cuda.get_device_name() if cuda else tables.machine()
    about = {"device": device, "torch": torch.__version__}
    names = ("layers", "width", "vocabulary", "tokens", "precisions", "rounds", "compile")
    about |= {name: getattr(options, name) for name in names}
    results = Results(options.results, about)
    print(f"{device}, torch {torch.__version__}, CUDA {torch.version.cuda}\n")
    lines = results.get("correctness") or correctness(options)
    results.put("correctness", lines)
    print("\n".join([*tables.head(CORRECT_HEAD, 4), *map(correct_row, lines)]), flush=True)
    print("\n" + "\n".join(tables.head(TRAINING_HEAD, 3)), flush=True)
    longest, left = 0.0, []
    for layers in sorted(options.layers):
        for precision in options.precisions:
            key = f"{layers} {precision}"
            done = results.get(key)
            started = time.monotonic()
            if done is None and started - began + 1.5 * longest > 60 * options.minutes:
                left.append(key)
                continue
            if done is None:
                shape = Shape(layers, options.width, options.vocabulary, options.tokens, precision)
                done = training(shape, options)
                results.put(key, done)
                longest = max(longest, time.monotonic() - started)
            print("\n".join(map(training_row, done)), flush=True)
    if left:
        print(f"\nleft for another run (--results): {', '.join(left)}")
    return 1 if left or any(line["right"] is False for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
