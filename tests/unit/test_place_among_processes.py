"""The place in an epoch's data at which processes of another number or batch size resume."""

from typing import Any

import pytest
from fairseq.data.iterators import EpochBatchIterator

import fairseq_deepnet.models  # noqa: F401  (repairs the iterator)
from tests.support.rig import EOS, Task

BATCHES = 24


def iterator(shards: int, shard: int, size: int = 1) -> Any:
    data = Task(two_sides=True).dataset_of([([4, EOS], [5, EOS])] * BATCHES)
    batches = [[*range(first, first + size)] for first in range(0, BATCHES, size)]
    return EpochBatchIterator(data, list, batches, num_shards=shards, shard_id=shard)


@pytest.mark.parametrize(("shards", "size"), [(2, 1), (4, 1), (6, 1), (3, 2), (1, 4)])
def test_every_sentence_is_used_once(shards: int, size: int) -> None:
    """Four processes train on three sentences each, and `shards` processes on the other twelve."""
    used: list[int] = []
    for shard in range(4):
        epochs = iterator(4, shard)
        epoch = epochs.next_epoch_itr(shuffle=size == 1)  # the order depends on the batches
        used += [number for batch in epochs.epoch_batch_sampler.batches[:3] for number in batch]
        for _ in range(3):
            next(epoch)
    state = epochs.state_dict()
    for shard in range(shards):
        epochs = iterator(shards, shard, size)
        epochs.load_state_dict(state)
        used += [number for batch in epochs.epoch_batch_sampler for number in batch]
    assert sorted(used) == [*range(BATCHES)]
