"""Chunks of text shared out over processes, in order and in bounded memory."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def end_with_parent() -> None:
    """End this worker with its parent: where that is killed with -9, it would wait for ever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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
    # fork: a fresh interpreter would import the whole package once per worker
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=end_with_parent)
    try:
        for chunk in itertools.chain(first, iterator):
            waiting.append(pool.submit(function, chunk))
            if len(waiting) >= workers * ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise ValueError(
            "a worker process was killed, for want of memory perhaps; run again with fewer WORKERS"
            " (--workers)"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
