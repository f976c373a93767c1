"""Translate a data folder's split: by fairseq-generate in several processes, or by CTranslate2.

For the latter the run is exported first, once for each checkpoint and type of weights.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from fairseq_deepnet.files import say, shown
from fairseq_deepnet.tools import fairseq_options
from fairseq_deepnet.tools.checkpoints.choice import Model
from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.processor import all_cores, threads_of
from fairseq_deepnet.tools.training import launch
from fairseq_deepnet.tools.training.progress import Counter
from fairseq_deepnet.tools.translation.engine import WINDOW, Search, cut_message
from fairseq_deepnet.tools.translation.stream import full_windows, translated

TOKENS: Final = 4000
"""Source tokens a batch."""
_HYPOTHESIS = re.compile(r"H-(\d+)\t\S+\t(.*)")


def in_corpus_order(found: Sequence[tuple[int, str]], sentences: int) -> list[str]:
    """One hypothesis a sentence, by sentence number, from (number, hypothesis) in any order.

    Raises ValueError that names the sentences for which there is none or more than one.
    """
    by_id: dict[int, str] = {}
    twice = []
    for number, text in found:
        if number in by_id:
            twice.append(number)
        by_id[number] = text
    missing = [number for number in range(sentences) if number not in by_id]
    unknown = sorted(number for number in by_id if number >= sentences)
    for numbers, trouble in (
        (missing, "no hypothesis for"),
        (sorted(set(twice)), "more than one hypothesis (keep --nbest at 1) for"),
        (unknown, "hypotheses beyond the reference for"),
    ):
        if numbers:
            listed = ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
            raise ValueError(f"fairseq-generate gave {trouble} {len(numbers)} sentences: {listed}")
    return [by_id[number] for number in range(sentences)]


class _Shard:
    """One fairseq-generate process, its output read by a thread of its own."""

    def __init__(
        self, command: Sequence[str], environment: dict[str, str], progress: Callable[[], None]
    ) -> None:
        self.found: list[tuple[int, str]] = []
        self.log: list[str] = []
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
            encoding="utf-8",
            errors="backslashreplace",
        )
        self.thread = threading.Thread(target=self._read, args=(progress,), daemon=True)
        self.thread.start()

    def _read(self, progress: Callable[[], None]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            match = _HYPOTHESIS.fullmatch(line.rstrip("\n"))
            if match:
                self.found.append((int(match[1]), match[2]))
                progress()
            elif not re.match(r"[STDP]-\d+\t", line):
                self.log.append(line)


def failure(program: str, status: int, lines: Sequence[str]) -> str:
    """The last line of a failed program, and where its whole output was put."""
    with tempfile.NamedTemporaryFile(
        "w", prefix=f"{program}.", suffix=".log", delete=False, encoding="utf-8"
    ) as log:
        log.writelines(lines)
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    return f"{program} failed (status {status}): {last} (log: {log.name})"


def _wait(shards: Sequence[_Shard]) -> _Shard | None:
    """Wait for all; the first that fails is returned at once."""
    waiting = list(shards)
    while waiting:
        for shard in waiting:
            shard.thread.join(timeout=0.1)
            if shard.thread.is_alive():
                continue
            if shard.process.wait() != 0:
                return shard
            waiting = [other for other in waiting if other is not shard]
    return None


def generate(
    arguments: Sequence[str], processes: int, gpus: int, sentences: int, threads: int
) -> list[str]:
    """Run fairseq-generate in `processes` shards and return the subwords of each sentence in order.

    Arguments:
        arguments: the words after fairseq-generate, without the shard
        gpus: GPUs to spread the shards over; 0 for the CPU
        sentences: how many translations there must be
        threads: threads of each process

    Raises ValueError with the end of the log if a process fails or a sentence is missing.
    """
    counter = Counter(sentences, "sentences translated", sys.stderr)
    lock = threading.Lock()

    def progress() -> None:
        with lock:
            counter.add()

    shards: list[_Shard] = []
    try:
        for index in range(processes):
            environment = dict(os.environ, PYTHONUNBUFFERED="1", OMP_NUM_THREADS=str(threads))
            if gpus:
                visible = os.environ.get("CUDA_VISIBLE_DEVICES")
                names = visible.split(",") if visible else list(map(str, range(gpus)))
                environment["CUDA_VISIBLE_DEVICES"] = names[index % gpus]
            shard = ["--distributed-world-size", str(processes), "--distributed-rank", str(index)]
            command = ["fairseq-generate", *arguments, *(shard if processes > 1 else [])]
            shards.append(_Shard(command, environment, progress))
        failed = _wait(shards)
    finally:
        for shard_process in shards:
            if shard_process.process.poll() is None:
                shard_process.process.terminate()
                shard_process.process.wait()
        counter.close()
    if failed is not None:
        raise ValueError(failure("fairseq-generate", failed.process.returncode, failed.log))
    return in_corpus_order([pair for shard in shards for pair in shard.found], sentences)


def cores_of(args: argparse.Namespace) -> int:
    """Cores to use: as many as --threads says, or all that this process may use."""
    return args.threads or all_cores()


def gpus_of(args: argparse.Namespace) -> int:
    """GPUs to use: as many as --gpus says, or all that are visible."""
    import torch

    return launch.choose_devices(args.gpus, 1, 1, torch.cuda.device_count()).gpus


def translate_with_fairseq(
    args: argparse.Namespace, model: Model, data: DataFolder, sentences: int
) -> list[str]:
    """The subwords of each sentence, by fairseq-generate."""
    direction = Direction(*data.languages)
    gpus = gpus_of(args)
    processes = gpus or args.processes or cores_of(args)
    processes = min(processes, max(1, sentences))
    arguments = [str(data.path.resolve()), "--path", str(model.path.resolve())]
    arguments += ["--user-dir", fairseq_options.user_dir(), "--gen-subset", args.split]
    arguments += ["--source-lang", direction.source, "--target-lang", direction.target]
    arguments += ["--beam", str(args.beam), "--lenpen", f"{args.lenpen:g}"]
    arguments += ["--max-tokens", str(args.batch or TOKENS), "--log-format", "none"]
    if processes > 1:
        # fairseq-generate fails where a process gets no batch at all
        arguments += ["--batch-size", str(max(1, sentences // (2 * processes)))]
    arguments += ([] if gpus else ["--cpu"]) + args.extra
    threads = threads_of(processes, cores_of(args))
    return generate(arguments, processes, gpus, sentences, threads)


def exported_model(args: argparse.Namespace, model: Model, data: DataFolder) -> Path:
    """Return the folder of the model exported for CTranslate2, made now if need be.

    Raises ValueError for models that take no raw text.
    """
    if data.is_moses:
        raise ValueError(
            f"{shown(data.path)} holds Moses tokens, and ctranslate2 is given raw text here; set "
            "ENGINE=fairseq"
        )
    from fairseq_deepnet.tools.export.command import export_for_ctranslate2  # imports all models

    return export_for_ctranslate2(model, data.path, args.quantization)


def ctranslate2_search(args: argparse.Namespace) -> Search:
    """How CTranslate2 searches."""
    return Search(args.beam, args.lenpen, batch_tokens=args.batch)


def translate_with_ctranslate2(
    args: argparse.Namespace, model: Model, data: DataFolder
) -> list[str]:
    """A translation of each line of the split's source."""
    from fairseq_deepnet.tools.translation.ctranslate2_engine import CTranslate2Model

    folder, threads = exported_model(args, model, data), cores_of(args)
    direction = Direction(*data.languages)
    lines = list(read_lines(data.text(args.split, direction, direction.source)))
    engine = CTranslate2Model(
        folder, ctranslate2_search(args), threads=threads, cpu=args.gpus == "0"
    )
    counter = Counter(len(lines), "sentences translated", sys.stderr)
    found = []
    for window in translated(engine, full_windows(lines, WINDOW * threads), direction):
        for hypotheses in window:
            found.append(hypotheses[0].text)
            counter.add()
    counter.close()
    if engine.cut:
        say(cut_message(engine.cut))
    return found
