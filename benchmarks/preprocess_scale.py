"""What preprocessing costs: time, cores used and memory of each stage of scripts/preprocess.sh.

    python benchmarks/preprocess_scale.py                               # 1,000,000 pairs, all cores
    python benchmarks/preprocess_scale.py --text raw/train --lines 200000 --workers 2

The corpus is synthetic German-English: each line joins one to three sentences of the sample corpus
(or of --text, PREFIX of PREFIX.de and PREFIX.en, plain or .gz), with numbers and invented words by
Zipf's law among them, so that the vocabulary grows as real text's does; one line in a hundred is
blank, far too long, a repetition or no translation. Linux only: reads /proc.

Memory is the sum of the resident sets of all processes of the script, sampled 5 times a second
(pages that processes share count once for each), and the largest single one. "cores" is CPU time
over wall time, which other work on the machine lowers; "spread" is CPU time over that of the
busiest process, which other work does not change: how many cores the stage can use (more than there
are workers where processes follow one another, as in encoding, file by file).
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
SYLLABLES = re.findall(r"\w+", "ba de fi go ku la me ni or pa qui re so tu wen xi zau schl ung er")


def base_pairs(prefix: str | None) -> list[tuple[str, str]]:
    """The sentences that lines are joined from."""
    if prefix is None:
        from sample_corpus import sample_pairs

        return sample_pairs("train", 5000)
    from fairseq_deepnet.tools.corpora.clean import read_pairs
    from fairseq_deepnet.tools.corpora.text import find_side

    return list(read_pairs(find_side(prefix, "de"), find_side(prefix, "en")))


def synthetic(base: list[tuple[str, str]], lines: int, seed: int) -> Iterator[tuple[str, str]]:
    """So many pairs, the same for the same seed."""
    generator = random.Random(seed)
    previous = base[0]
    for number in range(lines):
        kind = number % 400
        if kind == 100:
            yield "", ""
        elif kind == 200:
            yield previous
        elif kind == 300:
            yield " ".join([base[0][0]] * 100), base[0][1]
        elif kind == 399:
            yield generator.choice(base)[0], " ".join(["?"] * 60)
        else:
            parts = generator.choices(base, k=generator.randint(1, 3))
            rank = int(1 / (1e-7 + generator.random()))  # P(rank > n) is 1 / n
            digits = random.Random(rank)
            word = "".join(digits.choices(SYLLABLES, k=digits.randint(2, 4))).capitalize()
            value = generator.randint(1, 9999)
            previous = tuple(  # type: ignore[assignment]
                " ".join([*(part[side] for part in parts), f"{word} {value}."]) for side in (0, 1)
            )
            yield previous


def write_corpus(folder: Path, base: list[tuple[str, str]], lines: int, seed: int) -> None:
    """folder/{train,valid}.{de,en}."""
    for split, count in (("train", lines), ("valid", 99)):
        with (
            (folder / f"{split}.de").open("w", encoding="utf-8") as de,
            (folder / f"{split}.en").open("w", encoding="utf-8") as en,
        ):
            for german, english in synthetic(base, count, seed):
                de.write(german + "\n")
                en.write(english + "\n")


@dataclass
class Stage:
    """One stage as it was seen from outside."""

    name: str
    started: float
    before: dict[int, float]
    seconds: float = 0.0
    cpu: float = 0.0
    busiest: float = 0.0
    peak: int = 0
    largest: int = 0


@dataclass
class Watch:
    """Samples a process and its descendants until it ends."""

    root: int
    cpu: dict[int, float] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)

    def tree(self) -> list[tuple[int, float, int]]:
        """(process, CPU seconds, resident bytes) of the root and all its descendants."""
        facts: dict[int, tuple[int, float, int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                seconds = (int(fields[11]) + int(fields[12])) / TICK
                facts[int(entry.name)] = int(fields[1]), seconds, int(fields[21]) * PAGE
        found = {self.root}
        while True:
            more = {p for p, (parent, _, _) in facts.items() if parent in found} - found
            if not more:
                return [(p, *facts[p][1:]) for p in found if p in facts]
            found |= more

    def sample(self) -> None:
        """Add what is seen now to the stage that runs."""
        processes = self.tree()
        for process, seconds, _ in processes:
            self.cpu[process] = seconds
        if self.stages:
            stage = self.stages[-1]
            sizes = [size for _, _, size in processes]
            stage.peak = max(stage.peak, sum(sizes))
            stage.largest = max(stage.largest, *sizes, 0)
            stage.seconds = time.monotonic() - stage.started
            used = [seconds - stage.before.get(p, 0.0) for p, seconds in self.cpu.items()]
            stage.cpu, stage.busiest = sum(used), max(used)

    def begin(self, name: str) -> None:
        """A new stage begins now."""
        self.sample()
        self.stages.append(Stage(name, time.monotonic(), dict(self.cpu)))


def run(raw: Path, out: Path, workers: int, vocabulary: int) -> Watch:
    """Run the script, with its messages as the marks between stages."""
    environment = {
        **os.environ,
        **{"SRC": "de", "TGT": "en", "TRAIN": f"{raw}/train", "VALID": f"{raw}/valid"},
        **{"OUT": str(out), "WORKERS": str(workers), "VOCAB_SIZE": str(vocabulary)},
        **{"DEEPNET_SKIP_SETUP": "1", "DROP_DUPLICATES": "1"},
    }
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", str(ROOT / "scripts" / "preprocess.sh")]
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, encoding="utf-8", start_new_session=True
    ) as process:
        watch = Watch(process.pid)
        watch.begin("reading the inputs")
        lock = threading.Lock()

        def listen() -> None:
            assert process.stderr is not None
            for line in process.stderr:
                print(line, end="", file=sys.stderr, flush=True)
                mark = re.match(r"(\w[\w ]+)$", line)
                if mark:
                    with lock:
                        watch.begin(mark[1])

        listener = threading.Thread(target=listen)
        listener.start()
        while process.poll() is None:
            with lock:
                watch.sample()
            time.sleep(0.2)
        listener.join()
    if process.returncode != 0:
        raise SystemExit(f"scripts/preprocess.sh failed with status {process.returncode}")
    return watch


def report(watch: Watch, lines: int) -> None:
    """A Markdown table of the stages and of the whole."""
    columns = "stage, seconds, lines a second, CPU seconds, cores, spread, peak MiB, largest MiB"
    print(f"| {columns.replace(', ', ' | ')} |")
    print("|---" * (columns.count(", ") + 1) + "|")
    whole = Stage(
        "all",
        0.0,
        {},
        sum(stage.seconds for stage in watch.stages),
        sum(stage.cpu for stage in watch.stages),
        sum(stage.busiest for stage in watch.stages),
        max(stage.peak for stage in watch.stages),
        max(stage.largest for stage in watch.stages),
    )
    for stage in [*watch.stages, whole]:
        seconds = max(stage.seconds, 1e-9)
        print(
            f"| {stage.name} | {seconds:.1f} | {lines / seconds:,.0f} | {stage.cpu:.1f} "
            f"| {stage.cpu / seconds:.2f} | {stage.cpu / max(stage.busiest, 1e-9):.2f} "
            f"| {stage.peak / 2**20:,.0f} | {stage.largest / 2**20:,.0f} |"
        )


def main() -> None:
    """Make the corpus, run the script, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=1_000_000, help="training pairs (1000000)")
    parser.add_argument("--text", metavar="PREFIX", help="sentences to join (the sample corpus's)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where to work (a temporary folder)")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="preprocess_scale.", dir=args.folder))
    try:
        write_corpus(folder, base_pairs(args.text), args.lines, args.seed)
        watch = run(folder, folder / "data", args.workers, args.vocab_size)
    finally:
        shutil.rmtree(folder)
    print(f"\n{args.lines:,} pairs, {args.workers} workers, {os.cpu_count()} cores\n")
    report(watch, args.lines)


if __name__ == "__main__":
    main()
