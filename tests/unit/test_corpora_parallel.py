"""Work in chunks on several processes: order, errors, killed workers and killed parents."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from fairseq_deepnet.tools.corpora import clean
from fairseq_deepnet.tools.corpora.clean import Limits, clean_split
from fairseq_deepnet.tools.corpora.parallel import map_in_order
from fairseq_deepnet.tools.corpora.text import pair_chunks

MODULE = Path(clean.__file__).with_name("parallel.py")
LANGUAGES = ("eo", "ia")


def slower_the_earlier(number: int) -> tuple[int, int]:
    time.sleep(0.02 * (3 - number % 3))
    return number, os.getpid()


def fail_at(number: int, bad: int) -> int:
    if number == bad:
        raise ValueError(f"chunk {number} is bad")
    return number


def kill_itself(number: int) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_results_come_in_order_from_several_processes() -> None:
    results = list(map_in_order(slower_the_earlier, range(9), workers=3))
    assert [number for number, _ in results] == list(range(9))
    processes = {process for _, process in results}
    assert len(processes) > 1
    assert os.getpid() not in processes


def test_one_chunk_needs_no_other_process() -> None:
    assert list(map_in_order(slower_the_earlier, [5], workers=3)) == [(5, os.getpid())]
    assert list(map_in_order(slower_the_earlier, [], workers=3)) == []


def test_chunks_are_read_only_a_little_ahead() -> None:
    read = Counter[str]()

    def chunks() -> object:
        for number in range(100):
            read["chunks"] += 1
            yield number

    results = map_in_order(slower_the_earlier, chunks(), workers=2, ahead=2)  # type: ignore[arg-type]
    next(results)
    assert read["chunks"] <= 6
    results.close()  # type: ignore[attr-defined]


def test_the_error_of_a_worker_is_raised_after_the_results_before_it() -> None:
    results = map_in_order(partial(fail_at, bad=4), range(9), workers=2)
    assert [next(results) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="chunk 4 is bad"):
        next(results)


def test_a_killed_worker_is_one_line_of_advice() -> None:
    with pytest.raises(ValueError, match=r"worker process was killed.*fewer WORKERS"):
        list(map_in_order(kill_itself, range(9), workers=2))


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import importlib.util, os, sys, time\n"
        f"spec = importlib.util.spec_from_file_location('parallel', {str(MODULE)!r})\n"
        "parallel = importlib.util.module_from_spec(spec)\n"
        "sys.modules['parallel'] = parallel\n"
        "spec.loader.exec_module(parallel)\n"
        "def work(number):\n"
        "    os.write(1, b'%d\\n' % os.getpid())\n"  # one write: two workers share the pipe
        "    time.sleep(600)\n"
        "list(parallel.map_in_order(work, range(9), workers=2))\n",
        encoding="utf-8",
    )
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, encoding="utf-8"
    ) as parent:
        assert parent.stdout is not None
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        parent.kill()
        parent.wait()
        for _ in range(6000):
            alive = [worker for worker in workers if is_running(worker)]
            if not alive:
                break
            time.sleep(0.1)
        for worker in alive:
            os.kill(worker, signal.SIGKILL)
    assert not alive


def is_running(process: int) -> bool:
    try:
        state = (
            Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
        )
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def write_sides(folder: Path, lines: int) -> str:
    """Pairs of which every seventh repeats one before and every eleventh is too long."""
    folder.mkdir()
    with (
        (folder / "train.eo").open("w", encoding="utf-8") as eo,
        (folder / "train.ia").open("w", encoding="utf-8") as ia,
    ):
        for number in range(lines):
            word = number - 3 if number % 7 == 6 else number
            text = f"unu {word}" + " kaj" * (300 if number % 11 == 10 else 0)
            eo.write(f"{text}\n")
            ia.write(f"uno {word}\u2028\n")
    return str(folder / "train")


@pytest.mark.parametrize("drop_duplicates", [False, True])
def test_cleaning_is_the_same_whatever_the_chunks_and_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drop_duplicates: bool
) -> None:
    prefix = write_sides(tmp_path / "raw", 500)
    limits = Limits(drop_duplicates=drop_duplicates)
    reports, texts = [], []
    for name, chunk, workers in (("whole", 10_000, 1), ("chunks", 7, 2), ("pairs", 1, 1)):
        monkeypatch.setattr(clean, "CHUNK", chunk)
        out = tmp_path / name
        out.mkdir()
        reports.append(clean_split("train", prefix, LANGUAGES, out, limits, workers))
        texts.append([(out / f"train.{language}").read_bytes() for language in LANGUAGES])
    assert reports[0] == reports[1] == reports[2]
    assert texts[0] == texts[1] == texts[2]
    counts = reports[0]
    assert counts["read"] == 500
    # pair 10 repeats nothing, as it is too long; every seventh repeats a pair three before it
    repeated = [n for n in range(6, 500, 7) if n % 11 != 10 and (n - 3) % 11 != 10]
    assert counts["dropped"].get("duplicate", 0) == (len(repeated) if drop_duplicates else 0)


def test_errors_name_the_line_also_in_a_later_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clean, "CHUNK", 10)
    prefix = write_sides(tmp_path / "raw", 40)
    path = tmp_path / "raw" / "train.ia"
    path.write_bytes(path.read_bytes().replace(b"uno 32\xe2", b"uno \xff32\xe2"))
    with pytest.raises(ValueError, match=r"train\.ia, line 33: not valid UTF-8"):
        clean_split("train", prefix, LANGUAGES, tmp_path, Limits(), 2)


@pytest.mark.parametrize(("left", "right"), [(20, 33), (33, 20), (20, 20 + 1), (0, 5)])
def test_sides_of_different_length_are_counted(tmp_path: Path, left: int, right: int) -> None:
    paths = tmp_path / "a", tmp_path / "b"
    for path, lines in zip(paths, (left, right), strict=True):
        path.write_text("x\n" * lines, encoding="utf-8")
    with pytest.raises(ValueError, match=rf"a has {left} lines, .*b has {right}"):
        list(pair_chunks(*paths, 10))
