"""fairseq's thread that reads batches ahead is not left alone at the end of a program."""

import time
from collections.abc import Iterator

import pytest
from fairseq.data.iterators import BufferedIterator

import fairseq_deepnet.models  # noqa: F401  (mends fairseq)
from fairseq_deepnet import compat


class Batches:
    """Eight batches, whose end takes a while, as that of torch's workers does."""

    ended = False

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[int]:
        try:
            yield from range(8)
        finally:
            time.sleep(0.3)
            self.ended = True


@pytest.mark.parametrize("taken", [1, 8])
def test_a_reader_ends_before_the_program_does(taken: int) -> None:
    source = Batches()
    batches = BufferedIterator(2, source)
    assert [next(batches) for _ in range(taken)] == list(range(taken))
    reader = batches._consumer
    compat.end_readers()
    assert not reader.is_alive()
    assert source.ended
