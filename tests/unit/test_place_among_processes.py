"""The place in the data of an epoch at which another number of processes resumes."""

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
    """The batches that four processes have trained on, each this number, and their saved state."""
    trained: list[int] = []
    state: dict[str, Any] = {}
    for shard in range(4):
        epochs = iterator(4, shard, grouped)
        epoch = epochs.next_epoch_itr()
        trained += [
            number for batch in epochs.epoch_batch_sampler.batches[:batches] for number in batch
        ]
        for _ in range(batches):
            next(epoch)
        state = {**epochs.state_dict(), SHARDS: 4}
    return trained, state


def left(shards: int, state: dict[str, Any], grouped: bool = True) -> list[int]:
    rest: list[int] = []
    for shard in range(shards):
        epochs = iterator(shards, shard, grouped)
        epochs.load_state_dict(place_in_epoch(state, shards, grouped))
        rest += [number for batch in epochs.epoch_batch_sampler for number in batch]
    return rest


@pytest.mark.parametrize(("shards", "grouped"), [(2, False), (6, False), (4, True)])
def test_every_batch_is_made_once(shards: int, grouped: bool) -> None:
    trained, state = after(3, grouped)
    assert sorted(trained + left(shards, state, grouped)) == [*range(BATCHES)]


def test_grouped_batches_need_as_many_processes_until_the_epoch_ends() -> None:
    _, state = after(3)
    message = r"--grouped-shuffling: .* 4 processes, .* 2 cannot .* with 4 .* --reset-dataloader"
    with pytest.raises(ConfigurationError, match=message):
        place_in_epoch(state, 2, is_grouped=True)
    _, ended = after(BATCHES // 4)
    epochs = iterator(2)
    epochs.load_state_dict(place_in_epoch(ended, 2, is_grouped=True))
    assert epochs.next_epoch_idx == 2
