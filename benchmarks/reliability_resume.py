"""Trainings killed and stopped at random moments: do they end as if they had not been?

    python benchmarks/reliability_resume.py                      # 100 kill -9, 40 SIGTERM
    python benchmarks/reliability_resume.py --kills 10 --stops 5 --ways "two processes"
    python benchmarks/reliability_resume.py --text raw/train --source de --target en

Each way of training makes --updates updates once without a pause, which is several epochs, and then
again in runs of real fairseq-train processes that meet a signal after a random number of updates
and a random part of one more, and are started again by the same command. Of several processes a
kill -9 meets one, a SIGTERM one or all. The text is made up (data/sample), or the first lines
of PREFIX.LANGUAGE[.gz].

Columns: kill -9 and SIGTERM that met a training; "different" counts runs whose weights, moments,
fp32 copies or monitor.jsonl (losses and measured quantities of every update) are not, to the last
bit, those of the run without a pause; "lost" the updates that were made and logged and that a
SIGTERM cost; "hung" trainings that had to be killed a minute after the signal. Ends with status 1
unless the last three are 0.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fairseq_deepnet.models

# isort: split
import torch
from sample_corpus import sample_pairs

from fairseq_deepnet.checkpoints import load_checkpoint, num_updates
from fairseq_deepnet.tools.corpora.text import find_side, read_lines

PLUGIN: Final = Path(fairseq_deepnet.__file__).parent
MODEL: Final = (
    "--arch=deepnet_transformer --encoder-layers=3 --decoder-layers=3 --encoder-embed-dim=32"
    " --decoder-embed-dim=32 --encoder-ffn-embed-dim=64 --decoder-ffn-embed-dim=64"
    " --encoder-attention-heads=2 --decoder-attention-heads=2 --share-all-embeddings --dropout=0.1"
    " --attention-dropout=0.1 --lr=0.002 --lr-scheduler=inverse_sqrt --warmup-updates=10"
    " --clip-norm=1 --criterion=label_smoothed_cross_entropy --label-smoothing=0.1"
    " --max-tokens=400 --cpu --monitor-interval=1 --log-format=json --log-interval=1"
    " --save-interval-updates=3 --keep-interval-updates=1 --no-epoch-checkpoints"
)
TWO: Final = (
    "--ddp-backend=legacy_ddp --distributed-backend=gloo --distributed-no-spawn --device-id=0"
    " --distributed-world-size=2"
)
ADAM, FUSED = ["--optimizer=adam"], ["--optimizer=fused_adam"]
WAYS: Final[dict[str, tuple[list[str], int, bool]]] = {
    "adam, update-freq 2": ([*ADAM, "--update-freq=2", "--disable-validation"], 1, False),
    "fused_adam, validated": ([*FUSED, "--validate-interval-updates=3"], 1, False),
    "bf16": ([*FUSED, "--bf16", "--disable-validation"], 1, False),
    "data in two shards": ([*FUSED, "--disable-validation"], 1, True),
    "two processes": ([*TWO.split(), *FUSED, "--disable-validation"], 2, False),
    "two processes, update-freq 2": (
        [*TWO.split(), *ADAM, "--update-freq=2", "--disable-validation"],
        2,
        True,
    ),
}
"""Options, processes, and whether the data are in two shards."""
UPDATE: Final = re.compile(r'"num_updates": "(\d+)"')
PATIENCE: Final = 60.0
"""Seconds that a training may take to end after a signal."""


@dataclass
class Tally:
    """What has happened to the trainings of one way."""

    kills: int = 0
    stops: int = 0
    runs: int = 0
    different: int = 0
    lost: int = 0
    hung: int = 0
    causes: list[str] = field(default_factory=list)


class Training:
    """One start of fairseq-train, in one process or several."""

    def __init__(self, data: str, folder: Path, words: Sequence[str], processes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        command = ["fairseq-train", data, f"--user-dir={PLUGIN}", *words, f"--save-dir={folder}"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        if processes > 1:
            command.append(f"--distributed-init-method=tcp://127.0.0.1:{free_port()}")
        self.updates: list[int] = []
        self.moved = threading.Condition()
        self.log = (folder / "log").open("a", encoding="utf-8")
        self.ranks = [
            subprocess.Popen(
                [*command, *([f"--distributed-rank={rank}"] if processes > 1 else [])],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                env=environment,
            )
            for rank in range(processes)
        ]
        self.readers = [
            threading.Thread(target=self._read, args=(rank,), daemon=True)
            for rank in range(processes)
        ]
        for reader in self.readers:
            reader.start()

    def _read(self, rank: int) -> None:
        for line in self.ranks[rank].stdout or ():
            self.log.write(f"{rank}: {line}")
            found = UPDATE.search(line) if rank == 0 and "train_inner" in line else None
            if found:
                with self.moved:
                    self.updates.append(int(found[1]))
                    self.moved.notify()
        with self.moved:
            self.moved.notify()

    def wait_for_updates(self, count: int) -> bool:
        """Wait until this start has made so many updates; False if it ended before."""
        with self.moved:
            while len(self.updates) < count and self.ranks[0].poll() is None:
                self.moved.wait(timeout=0.2)
        return len(self.updates) >= count

    def end(self, patience: float | None = None) -> bool:
        """Wait for all processes; False if they had to be killed."""
        until = None if patience is None else time.monotonic() + patience
        hung = False
        for rank in self.ranks:
            try:
                rank.wait(None if until is None else max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                hung = True
                rank.kill()
                rank.wait()
        for reader in self.readers:
            reader.join(timeout=10)
        self.log.close()
        return not hung

    @property
    def status(self) -> int:
        """The worst exit status of its processes."""
        return max((rank.returncode for rank in self.ranks), key=abs)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_data(options: argparse.Namespace, place: Path) -> list[Path]:
    """Two data folders with one dictionary, of as many sentence pairs each."""
    source, target = options.source, options.target
    count = options.pairs
    if options.text:
        sides = [
            list(islice(read_lines(find_side(options.text, language)), 2 * count))
            for language in (source, target)
        ]
    else:
        sides = [list(side) for side in zip(*sample_pairs("train", 2 * count), strict=True)]
    folders = []
    for shard in (0, 1):
        folder = place / f"shard{shard}"
        folder.mkdir()
        for language, lines in zip((source, target), sides, strict=True):
            part = lines[shard * count : (shard + 1) * count]
            for split, some in (("train", part), ("valid", part[:40])):
                text = "".join(f"{line}\n" for line in some)
                (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
        words = ["fairseq-preprocess", "--source-lang", source, "--target-lang", target]
        words += ["--trainpref", str(folder / "train"), "--validpref", str(folder / "valid")]
        words += ["--destdir", str(folder / "data"), "--joined-dictionary"]
        if folders:
            words += ["--srcdict", str(folders[0] / f"dict.{source}.txt")]
        subprocess.run(words, check=True, capture_output=True)
        folders.append(folder / "data")
    return folders


def tensors(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every tensor and number in a nested state, by its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from tensors(item, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from tensors(item, f"{name}.{index}")
    elif isinstance(value, torch.Tensor | int | float):
        yield name, torch.as_tensor(value)


def differences(one: Path, other: Path) -> list[str]:
    """What differs between two finished trainings; nothing where they are bit-equal."""
    found = []
    states = [load_checkpoint(folder / "checkpoint_last.pt") for folder in (one, other)]
    for key in ("model", "last_optimizer_state"):
        first, second = (dict(tensors(state[key])) for state in states)
        names = first.keys() ^ second.keys()
        names |= {n for n in first.keys() & second.keys() if not torch.equal(first[n], second[n])}
        if names:
            found.append(f"{len(names)} of {len(first)} in {key}, such as {min(names)}")
    records = [(folder / "monitor.jsonl").read_bytes() for folder in (one, other)]
    if records[0] != records[1]:
        found.append("monitor.jsonl")
    return found


def saved_updates(folder: Path) -> int:
    last = folder / "checkpoint_last.pt"
    return num_updates(load_checkpoint(last)) if last.is_file() else 0


def interrupted_run(
    command: tuple[str, Path, list[str], int], updates: int, signals: list[int], draw: random.Random
) -> Tally:
    """Train to the end; each start but the last meets the next of `signals`, which are used up."""
    tally = Tally(runs=1)
    folder = command[1]
    while True:
        training = Training(*command)
        left = updates - saved_updates(folder)
        moment = draw.randint(1, max(1, min(6, left)))
        if signals and left > 1 and training.wait_for_updates(moment):
            time.sleep(draw.uniform(0, 0.15))
            wanted = signals[0]
            everyone = wanted == signal.SIGTERM and draw.random() < 0.5
            met = [rank for rank in training.ranks if rank.poll() is None]
            for rank in met if everyone else draw.sample(met, min(1, len(met))):
                rank.send_signal(wanted)
            tally.hung += not training.end(PATIENCE)
            if training.status != 0:  # otherwise it was at its end already
                signals.pop(0)
                tally.kills += wanted == signal.SIGKILL
                tally.stops += wanted == signal.SIGTERM
                made = max(training.updates, default=0)
                if wanted == signal.SIGTERM and saved_updates(folder) < made:
                    tally.lost += made - saved_updates(folder)
                    tally.causes.append(f"saved {saved_updates(folder)} of {made} updates")
                continue
        training.end()
        if training.status != 0:
            raise SystemExit(f"{folder}/log: ended by itself with status {training.status}")
        return tally


def race(name: str, data: list[Path], place: Path, options: argparse.Namespace) -> Tally:
    """All runs of one way."""
    extra, processes, sharded = WAYS[name]
    words = [*MODEL.split(), *extra, f"--max-update={options.updates}"]
    folders = os.pathsep.join(map(str, data)) if sharded else str(data[0])
    place = place / re.sub(r"\W+", "_", name)
    whole = Training(folders, place / "whole", words, processes)
    whole.end()
    if whole.status != 0:
        raise SystemExit(f"{place}/whole/log: ended with status {whole.status}")
    draw = random.Random(f"{options.seed} {name}")
    share = list(options.ways).index(name), len(options.ways)
    signals = [signal.SIGKILL] * len(range(share[0], options.kills, share[1]))
    signals += [signal.SIGTERM] * len(range(share[0], options.stops, share[1]))
    draw.shuffle(signals)
    total = Tally()
    while signals:
        folder = place / f"run{total.runs}"
        tally = interrupted_run((folders, folder, words, processes), options.updates, signals, draw)
        found = differences(place / "whole", folder)
        for column in ("kills", "stops", "runs", "lost", "hung"):
            setattr(total, column, getattr(total, column) + getattr(tally, column))
        total.different += bool(found)
        total.causes += [f"{folder.name}: {cause}" for cause in (*tally.causes, *found)]
        if not found:
            shutil.rmtree(folder)
    return total


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100, help="kill -9 in all (%(default)s)")
    parser.add_argument("--stops", type=int, default=40, help="SIGTERM in all (%(default)s)")
    parser.add_argument("--updates", type=int, default=60, help="of each run (%(default)s)")
    parser.add_argument("--pairs", type=int, default=400, help="sentences a shard (%(default)s)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY")
    parser.add_argument("--text", help="PREFIX of raw text (made up)")
    parser.add_argument("--source", default="de", help="its languages (%(default)s)")
    parser.add_argument("--target", default="en", help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (%(default)s)")
    parser.add_argument("--folder", type=Path, help="where to work (a temporary folder)")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="reliability.", dir=options.folder))
    data = make_data(options, place)
    print("| way | runs | kill -9 | SIGTERM | different | lost | hung |")
    print("|---|---:|---:|---:|---:|---:|---:|", flush=True)
    failures: list[str] = []
    for name in options.ways:
        found = race(name, data, place, options)
        cells = [name, found.runs, found.kills, found.stops]
        cells += [found.different, found.lost, found.hung]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
        failures += [f"{name}, {cause}" for cause in found.causes]
        failures += [f"{name}: {found.hung} hung"] if found.hung else []
    for failure in failures:
        print(failure, file=sys.stderr)
    if failures:
        print(f"the folders of what differs are kept in {place}", file=sys.stderr)
        return 1
    shutil.rmtree(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
