"""Work shared out over processes: chunks of text in order and bounded memory, or files as done."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

CHUNK = 10_000
"""Lines that one call works on: a second of work or less, some megabytes."""


def end_with_parent() -> None:
    """End this worker with its parent: where that is killed with -9, it would wait for ever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Yield processes that end with this one; after an error, what is still to do is dropped."""
    # fork where it exists: a fresh interpreter would import the whole package once a worker
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if "fork" in methods else "spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=end_with_parent)
    try:
        yield pool
    except BrokenProcessPool as error:
        raise ValueError(
            "a worker process was killed, for want of memory perhaps; run again with fewer WORKERS"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def as_done(function: Callable[[T], object], items: Sequence[T], workers: int = 1) -> Iterator[T]:
    """Do `function(item)` for every item by `workers` processes; yields each item when it is done.

    One item or one worker is this process. Errors are raised as by `map_in_order`.
    """
    if min(workers, len(items)) <= 1:
        for item in items:
            function(item)
            yield item
        return
    with _pool(min(workers, len(items))) as pool:
        working = {pool.submit(function, item): item for item in items}
        for job in as_completed(working):
            job.result()
            yield working[job]


def map_in_order(
    function: Callable[[T], R], chunks: Iterable[T], workers: int = 1, ahead: int = 2
) -> Iterator[R]:
    """Yield `function(chunk)` for every chunk, in order, computed by `workers` processes.

    At most `workers` x `ahead` chunks and results are held at a time. A single chunk is worked on
    in this process, so that short text costs no start of processes. `function` must be a function
    of a module (or a functools.partial of one). The first exception of a worker is raised here;
    ValueError if a worker was killed.
    """
    iterator = iter(chunks)
    first = list(itertools.islice(iterator, 2))
    if workers <= 1 or len(first) < 2:
        yield from map(function, itertools.chain(first, iterator))
        return
    waiting: deque[Future[R]] = deque()
    with _pool(workers) as pool:
        for chunk in itertools.chain(first, iterator):
            waiting.append(pool.submit(function, chunk))
            if len(waiting) >= workers * ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
