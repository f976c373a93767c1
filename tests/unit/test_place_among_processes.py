"""Where a training goes on in the data of an epoch, with another number of processes."""

from typing import Any

import pytest
from fairseq.data.iterators import EpochBatchIterator

from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.trainer import SHARDS, place_in_epoch
from tests.support.rig import EOS, Task

BATCHES = 24


def iterator(shards: int, shard: int = 0, grouped: bool = True) -> Any:
    data = Task(two_sides=True).dataset_of([([4, EOS], [5, EOS])] * BATCHES)
    batches = [[number] for number in range(BATCHES)]
    return EpochBatchIterator(
        data, list, batches, num_shards=shards, shard_id=shard, grouped_shuffling=grouped
    )


def after(batches: int, grouped: bool = True) -> tuple[list[int], dict[str, Any]]:
    """What four processes have made with so many batches each, and the state that they save."""
    made: list[int] = []
    state: dict[str, Any] = {}
    for shard in range(4):
        one = iterator(4, shard, grouped)
        epoch = one.next_epoch_itr()
        made += [number for batch in one.epoch_batch_sampler.batches[:batches] for number in batch]
        for _ in range(batches):
            next(epoch)
        state = {**one.state_dict(), SHARDS: 4}
    return made, state


def left(shards: int, state: dict[str, Any], grouped: bool = True) -> list[int]:
    found: list[int] = []
    for shard in range(shards):
        one = iterator(shards, shard, grouped)
        one.load_state_dict(place_in_epoch(state, shards, grouped))
        found += [number for batch in one.epoch_batch_sampler for number in batch]
    return found


@pytest.mark.parametrize(("shards", "grouped"), [(2, False), (6, False), (4, True)])
def test_every_batch_is_made_once(shards: int, grouped: bool) -> None:
    made, state = after(3, grouped)
    assert sorted(made + left(shards, state, grouped)) == [*range(BATCHES)]


def test_grouped_batches_need_as_many_processes_until_the_epoch_ends() -> None:
    _, state = after(3)
    told = r"--grouped-shuffling: .* 4 processes, .* 2 cannot .* with 4 .* --reset-dataloader"
    with pytest.raises(ConfigurationError, match=told):
        place_in_epoch(state, 2, is_grouped=True)
    _, ended = after(BATCHES // 4)
    one = iterator(2)
    one.load_state_dict(place_in_epoch(ended, 2, is_grouped=True))
    assert one.next_epoch_idx == 2
