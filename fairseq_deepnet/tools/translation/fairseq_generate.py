"""fairseq-generate in several processes, each with a share of the sentences."""

from __future__ import annotations

import collections
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Final

from fairseq_deepnet.tools.devices import gpu_names
from fairseq_deepnet.tools.translation import stream

_HYPOTHESIS: Final = re.compile(r"H-(\d+)\t\S+\t(.*)")
_OTHER_RESULT: Final = re.compile(r"[STDP]-\d+\t")


def generate(
    arguments: Sequence[str], processes: int, gpus: int, sentences: int, threads: int
) -> list[str]:
    """Run fairseq-generate in `processes` shards and return the subwords of each sentence in order.

    Args:
        arguments: the words after fairseq-generate, without the shard.
        gpus: GPUs to spread the shards over; 0 for the CPU.
        sentences: how many translations there must be.
        threads: threads of each process.

    Raises ValueError with the end of the log if a process fails or a sentence is missing.
    """
    environment = dict(os.environ, PYTHONUNBUFFERED="1", OMP_NUM_THREADS=str(threads))
    found: list[tuple[int, str]] = []
    counter, lock = stream.LineCounter(sys.stderr, sentences), threading.Lock()

    def read(process: subprocess.Popen[str]) -> list[str]:
        log = []
        for line in process.stdout or ():
            if match := _HYPOTHESIS.fullmatch(line.rstrip("\n")):
                with lock:
                    found.append((int(match[1]), match[2]))
                    counter.add()
            elif not _OTHER_RESULT.match(line):
                log.append(line)
        process.wait()
        return log

    shards: list[subprocess.Popen[str]] = []
    with ThreadPoolExecutor(processes) as pool:
        try:
            for index in range(processes):
                shard = ["--distributed-world-size", str(processes)]
                shard += ["--distributed-rank", str(index)]
                if gpus:
                    environment["CUDA_VISIBLE_DEVICES"] = gpu_names(gpus)[index % gpus]
                process = subprocess.Popen(
                    ["fairseq-generate", *arguments, *(shard if processes > 1 else [])],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    encoding="utf-8",
                    errors="backslashreplace",
                )
                shards.append(process)
            reading = {pool.submit(read, process): process for process in shards}
            for done in as_completed(reading):
                log, status = done.result(), reading[done].returncode
                if status:
                    raise ValueError(failure("fairseq-generate", status, log))
        finally:
            for process in shards:
                process.terminate()  # nothing, where it has ended
            counter.close()
    return in_corpus_order(found, sentences)


def failure(program: str, status: int, lines: Sequence[str]) -> str:
    """Return the last line of a failed program, and where its whole output was put."""
    with tempfile.NamedTemporaryFile(
        "w", prefix=f"{program}.", suffix=".log", delete=False, encoding="utf-8"
    ) as log:
        log.writelines(lines)
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    if status == -signal.SIGKILL:
        last += "; it was killed, for want of memory perhaps: set a smaller BATCH"
    return f"{program} failed (status {status}): {last} (log: {log.name})"


def in_corpus_order(found: Sequence[tuple[int, str]], sentences: int) -> list[str]:
    """Return one hypothesis a sentence, in order, from (number, hypothesis) in any order.

    Raises ValueError that names the sentences for which there is none or more than one.
    """
    times = collections.Counter(number for number, _ in found)
    for wrong, trouble in (
        (set(range(sentences)) - set(times), "no hypothesis for"),
        (
            {number for number, count in times.items() if count > 1},
            "more than one hypothesis (keep --nbest at 1) for",
        ),
        (set(times) - set(range(sentences)), "hypotheses beyond the reference for"),
    ):
        if wrong:
            listed = ", ".join(map(str, sorted(wrong)[:10])) + (", ..." if len(wrong) > 10 else "")
            raise ValueError(f"fairseq-generate gave {trouble} {len(wrong)} sentences: {listed}")
    return [text for _, text in sorted(found)]
