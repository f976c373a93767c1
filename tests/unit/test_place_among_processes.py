"""The place in an epoch's data at which another number of processes resumes."""

from typing import Any

import pytest
from fairseq.data.iterators import EpochBatchIterator

from fairseq_deepnet.trainer import SHARDS, place_in_epoch
from tests.support.rig import EOS, Task

BATCHES = 24


def iterator(shards: int, shard: int) -> Any:
    data = Task(two_sides=True).dataset_of([([4, EOS], [5, EOS])] * BATCHES)
    batches = [[number] for number in range(BATCHES)]
    return EpochBatchIterator(data, list, batches, num_shards=shards, shard_id=shard)


@pytest.mark.parametrize("shards", [2, 4, 6])
def test_every_batch_is_used_once(shards: int) -> None:
    """Four processes train on three batches each, and `shards` processes on the other twelve."""
    used: list[int] = []
    for shard in range(4):
        epochs = iterator(4, shard)
        epoch = epochs.next_epoch_itr()
        used += [number for batch in epochs.epoch_batch_sampler.batches[:3] for number in batch]
        for _ in range(3):
            next(epoch)
    state = {**epochs.state_dict(), SHARDS: 4}
    for shard in range(shards):
        epochs = iterator(shards, shard)
        epochs.load_state_dict(place_in_epoch(state, shards))
        used += [number for batch in epochs.epoch_batch_sampler for number in batch]
    assert sorted(used) == [*range(BATCHES)]
