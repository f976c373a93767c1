"""fairseq's prefetching thread is stopped at the end of a program."""

import time
from collections.abc import Iterator

import pytest
from fairseq.data.iterators import BufferedIterator

import fairseq_deepnet.models  # noqa: F401  (repairs fairseq)
from fairseq_deepnet import compat


class Batches:
    """Eight batches whose end takes a while, like that of torch's workers."""

    ended = False

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[int]:
        try:
            yield from range(8)
        finally:
            time.sleep(0.3)
            self.ended = True


@pytest.mark.parametrize("used", [1, 8])
def test_a_prefetching_thread_ends_before_the_program(used: int) -> None:
    source = Batches()
    batches = BufferedIterator(2, source)
    assert [next(batches) for _ in range(used)] == list(range(used))
    reader = batches._consumer
    compat.end_readers()
    assert not reader.is_alive()
    assert source.ended
