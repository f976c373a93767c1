"""What monitoring costs: a training update without it, and with it at intervals of 100 and 1.

    python benchmarks/monitor_cost.py                # 18L-18L as configs/multi30k.yaml, tiny ones
    python benchmarks/monitor_cost.py --settings tiny-18 --direct 200 --rounds 20
    python benchmarks/monitor_cost.py --clock wall   # where nothing else runs

One model, fairseq's own trainer, and in every round one update each way, on one batch, in an order
that changes with the round: what disturbs the machine meets all alike. Rows:

    not due      --monitor-interval N at an update that is not measured, the price of being there
    interval 1   every quantity at every update; then each instrument alone
    watch        --on-divergence warn, the default, which looks at gradients at every tenth update
    interval 100 a hundredth of what a due update costs more, and what the calls of an update that
                 is not due take by themselves: the difference of two updates is too coarse for that
    directly     that many updates with --monitor-interval 100 over as many without

Seconds are medians over rounds, with the quartiles; "more" is the median over rounds of an update's
time over that of the plain one in the same round. Sentences are random, 6 to 22 words; the probe is
32 of them. On the CPU, one thread unless OMP_NUM_THREADS says otherwise, and its own time (--clock
cpu), which other programs on the machine disturb less than the clock on the wall.
"""

import argparse
import logging
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fairseq_deepnet.models  # noqa: F401  (registers the architectures)

# isort: split
import torch
from fairseq import options as fairseq_options
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer

from fairseq_deepnet.monitoring.instruments import INSTRUMENTS
from fairseq_deepnet.monitoring.quantities import EVERYTHING
from fairseq_deepnet.observers import Observer, build_observers, observe
from fairseq_deepnet.tools.standalone import VocabularyTask

EOS = 2
NEVER = 10**9
PLAIN, NOT_DUE, DUE, WATCH, DIRECT = "plain", "not due", "interval 1", "watch", "interval 100"


@dataclass(frozen=True)
class Setting:
    """A model and its batches.

    Arguments:
        layers: a side
        width: channels; the feed-forward is twice as wide, a head has 32
        tokens: target tokens a batch
        vocabulary: entries of the shared table
        rounds: how often each kind of update is made
    """

    layers: int
    width: int
    tokens: int
    vocabulary: int
    rounds: int


SETTINGS = {
    "multi30k": Setting(18, 128, 2048, 8000, 3),
    "tiny-18": Setting(18, 64, 1000, 8000, 7),
    "tiny-50": Setting(50, 64, 1000, 8000, 3),
}
"""Those of configs/multi30k.yaml and multi30k_tiny.yaml."""


class Task(FairseqTask):
    """Random sentence pairs in memory; 32 of them are the validation set."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(None)
        self.words = VocabularyTask(setting.vocabulary).source_dictionary
        self.generator = random.Random(1)
        self.datasets = {"valid": self.pairs(32)}

    @property
    def source_dictionary(self) -> Dictionary:
        return self.words

    @property
    def target_dictionary(self) -> Dictionary:
        return self.words

    def pairs(self, count: int) -> LanguagePairDataset:
        """Sentences of 6 to 22 words; both sides of a pair are of one length."""
        lengths = [self.generator.randint(6, 22) for _ in range(count)]
        sides = [
            [
                torch.tensor([*self.generator.choices(range(4, len(self.words)), k=n - 1), EOS])
                for n in lengths
            ]
            for _ in range(2)
        ]
        sizes = torch.tensor(lengths).numpy()
        first, second = ((side, sizes, self.words) for side in sides)
        return LanguagePairDataset(*first, *second, shuffle=False)

    def batch(self, tokens: int) -> dict[str, Any]:
        """About so many target tokens, sorted into sentences of like length as fairseq does."""
        data = self.pairs(8 * tokens // 14)
        rows = sorted(range(len(data)), key=lambda row: int(data.tgt_sizes[row]))
        start = self.generator.randrange(len(rows) // 2)
        chosen, total = [], 0
        for row in rows[start:]:
            total += int(data.tgt_sizes[row])
            if total > tokens:
                break
            chosen.append(row)
        return dict(data.collater([data[row] for row in chosen]))


class Switch(Observer):
    """Hands an update to one of several groups of observers, each of which counts its own.

    `seconds` are those that a group has taken in its own calls; what its hooks take is not in them.
    """

    def __init__(self, groups: dict[str, list[Observer]], clock: Callable[[], float]) -> None:
        self.groups, self.now, self.clock = groups, PLAIN, clock
        self.counts = dict.fromkeys(groups, 0)
        self.seconds = dict.fromkeys(groups, 0.0)

    def _tell(self, method: str, *args: Any) -> None:
        start = self.clock()
        for observer in self.groups[self.now]:
            getattr(observer, method)(*args)
        self.seconds[self.now] += self.clock() - start

    def begin(self, trainer: Any, update: int, samples: Sequence[Any]) -> None:
        self.counts[self.now] += 1
        self._tell("begin", trainer, self.counts[self.now], samples)

    def gradients(self, trainer: Any, update: int) -> None:
        self._tell("gradients", trainer, self.counts[self.now])

    def end(self, trainer: Any, update: int, made: bool) -> None:
        self._tell("end", trainer, self.counts[self.now], made)


def command_line(setting: Setting, folder: Path) -> list[str]:
    """The options of a training, as after fairseq-train."""
    words = ["none", "--arch=deepnet_transformer", f"--save-dir={folder}", "--share-all-embeddings"]
    for side in ("encoder", "decoder"):
        words += [f"--{side}-layers={setting.layers}", f"--{side}-embed-dim={setting.width}"]
        words += [f"--{side}-ffn-embed-dim={2 * setting.width}"]
        words += [f"--{side}-attention-heads={setting.width // 32}"]
    words += ["--optimizer=adam", "--adam-betas=(0.9,0.98)", "--lr=1e-4", "--dropout=0.1"]
    words += ["--criterion=label_smoothed_cross_entropy", "--label-smoothing=0.1"]
    return [*words, f"--max-tokens={setting.tokens}", "--on-divergence=off", "--cpu"]


class Bench:
    """One model whose updates are made in several ways.

    Arguments:
        setting: model and batches
        instruments: whether each instrument is a way of its own
        clock: seconds so far
    """

    def __init__(
        self, setting: Setting, folder: Path, instruments: bool, clock: Callable[[], float]
    ) -> None:
        self.setting, self.folder, self.clock = setting, folder, clock
        self.task = Task(setting)
        parser = fairseq_options.get_training_parser()
        args = fairseq_options.parse_args_and_arch(parser, command_line(setting, folder))
        cfg = convert_namespace_to_omegaconf(args)
        model = ARCH_MODEL_REGISTRY[args.arch].build_model(args, self.task)
        criterion = self.task.build_criterion(cfg.criterion)
        self.trainer = Trainer(cfg, self.task, model, criterion)
        groups = {PLAIN: [], NOT_DUE: self.watchers(NOT_DUE, NEVER), DUE: self.watchers(DUE, 1)}
        if instruments:
            for kind in INSTRUMENTS:
                names = ",".join(kind.quantities)
                groups[names] = self.watchers(kind.__name__, 1, names)
        groups[WATCH] = self.watchers(WATCH, 0, policy="warn")
        groups[DIRECT] = self.watchers(DIRECT, 100)
        self.switch = Switch(groups, clock)
        observe(self.trainer, [self.switch])

    def watchers(
        self, name: str, interval: int, quantities: str = EVERYTHING, policy: str = "off"
    ) -> list[Observer]:
        """The observers that such options ask for."""
        cfg = self.trainer.cfg
        wanted = {"monitor_interval": interval, "monitor": quantities, "on_divergence": policy}
        vars(cfg.model).update(wanted)
        cfg.checkpoint.save_dir = str(self.folder / name.replace(" ", "-"))
        return list(build_observers(self.trainer))

    def update(self, way: str, batch: dict[str, Any]) -> float:
        """Seconds of one update."""
        self.switch.now = way
        start = self.clock()
        self.trainer.train_step([batch])
        return self.clock() - start

    def rounds(self, ways: Sequence[str], count: int) -> dict[str, list[float]]:
        """Seconds of each way's update, for so many rounds of one update each."""
        found: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(count):
            batch = self.task.batch(self.setting.tokens)
            turn = number * len(ways) // max(1, min(count, len(ways))) % len(ways)
            for way in (*ways[turn:], *ways[:turn]):
                found[way].append(self.update(way, batch))
        return found


def more(seconds: Sequence[float], plain: Sequence[float]) -> float:
    """The median over rounds of how much longer than the plain update, as a fraction."""
    return statistics.median(a / b for a, b in zip(seconds, plain, strict=True)) - 1


def row(name: str, way: str, seconds: Sequence[float], extra: float | None) -> str:
    middle = statistics.median(seconds)
    lower, _, upper = statistics.quantiles(seconds, n=4, method="inclusive")
    share = "" if extra is None else f"{extra:+.1%}"
    return f"| {name} | {way} | {middle:.3f} | {lower:.3f}-{upper:.3f} | {share} |"


def measure(name: str, options: argparse.Namespace) -> list[str]:
    """The rows of one setting."""
    setting = SETTINGS[name]
    count = options.rounds or setting.rounds
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(setting, Path(folder), not options.no_instruments, clock)
        ways = [way for way in bench.switch.groups if way != DIRECT]
        bench.rounds(ways, 1)  # what is done once: optimiser, origin, imports
        bench.switch.seconds[NOT_DUE] = 0.0
        found = bench.rounds(ways, count)
        lines = [row(name, PLAIN, found[PLAIN], None)]
        extra = {way: more(found[way], found[PLAIN]) for way in ways}
        lines += [row(name, way, found[way], extra[way]) for way in ways if way != PLAIN]
        idle = bench.switch.seconds[NOT_DUE] / sum(found[PLAIN])
        lines.append(
            f"| {name} | {DIRECT}, computed | | | {extra[DUE] / 100 + idle:+.2%}"
            f" ({idle:.3%} when not due) |"
        )
        if options.direct:
            bench.rounds([DIRECT], 1)
            bench.switch.counts[DIRECT] = 0
            pairs = bench.rounds([PLAIN, DIRECT], options.direct)
            total = {way: sum(seconds) for way, seconds in pairs.items()}
            share = total[DIRECT] / total[PLAIN] - 1
            lines.append(
                f"| {name} | {DIRECT}, directly | {total[DIRECT]:.1f} / {total[PLAIN]:.1f} |"
                f" {options.direct} updates | {share:+.2%} |"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="models"
    )
    parser.add_argument("--rounds", type=int, help="updates of each kind (default by model)")
    parser.add_argument(
        "--direct", type=int, default=0, metavar="N", help="also N updates at interval 100 (0: no)"
    )
    parser.add_argument("--no-instruments", action="store_true", help="leave out each one alone")
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu", help="what is read")
    options = parser.parse_args()
    if options.rounds is not None and options.rounds < 3:
        parser.error(f"--rounds {options.rounds}: quartiles need 3")
    if options.direct % 100:
        parser.error(f"--direct {options.direct}: give hundreds, of which one update each is due")
    logging.disable(logging.WARNING)  # fairseq describes each model at length
    print("| model | update | s | quartiles | more |\n|---|---|---:|---:|---:|")
    for name in options.settings:
        start = time.perf_counter()
        print("\n".join(measure(name, options)), flush=True)
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
