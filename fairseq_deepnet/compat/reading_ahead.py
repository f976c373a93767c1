"""A program whose work is done ends with status 0.

fairseq reads batches ahead in a daemon thread. Where the program ends while that thread is about
to end torch's workers, Python stops it within C++: "terminate called without an active exception",
status -6, after everything was computed and printed. Here such threads are ended first.
"""

from __future__ import annotations

import atexit
import queue
import time
import weakref
from typing import Any, Final

from fairseq.data.iterators import BufferedIterator

from ..wrapping import wrap

PATIENCE: Final = 10.0
"""Seconds that all of them have, at the end of a program."""

_readers: weakref.WeakSet[Any] = weakref.WeakSet()


def apply() -> None:
    """Remember every such thread, and end those that are left at the end of the program."""

    @wrap(BufferedIterator, "_create_consumer")
    def remembered(create: Any, batches: Any) -> None:
        create(batches)
        _readers.add(batches._consumer)

    atexit.register(end_readers)


def end_readers() -> None:
    """Let each thread end after the batch at hand, and wait for it."""
    until = time.monotonic() + PATIENCE
    for reader in list(_readers):
        reader._max_len = 0
        while reader.is_alive() and time.monotonic() < until:
            try:
                reader._queue.get(timeout=0.05)  # it may wait for room
            except queue.Empty:
                continue
