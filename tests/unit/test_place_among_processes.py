"""Where a training goes on in the data of an epoch, with another number of processes."""

from typing import Any

import pytest
from fairseq.data.iterators import EpochBatchIterator

from fairseq_deepnet.errors import ConfigurationError
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
        state = one.state_dict()
    return made, state


def left(shards: int, state: dict[str, Any], grouped: bool = True) -> list[int]:
    found: list[int] = []
    for shard in range(shards):
        one = iterator(shards, shard, grouped)
        one.load_state_dict(state)
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
        iterator(2).load_state_dict(state)
    _, ended = after(BATCHES // 4)
    one = iterator(2)
    one.load_state_dict(ended)
    assert one.next_epoch_idx == 2


def test_batches_that_do_not_divide_evenly_are_made_again_and_none_is_left_out() -> None:
    made, state = after(3, grouped=False)
    rest = [number for shard in range(5) for number in _left_of(iterator(5, shard, False), state)]
    assert set(made + rest) == {*range(BATCHES)}
    assert len(made + rest) == BATCHES + 12 % 5


def _left_of(one: Any, state: dict[str, Any]) -> list[int]:
    one.load_state_dict(state)
    return [number for batch in one.epoch_batch_sampler for number in batch]


def test_a_loader_that_serves_all_epochs_shuffles_after_the_curriculum() -> None:
    data = Task(two_sides=True).dataset_of([([4, EOS], [5, EOS])] * BATCHES)
    batches = [[number] for number in range(BATCHES)]
    orders = []
    for begun in (1, 2):  # not interrupted, and resumed in the second epoch
        one = EpochBatchIterator(data, list, batches, epoch=begun, reuse_dataloader=True)
        for epoch in range(begun, 3):
            for _ in one.next_epoch_itr(shuffle=epoch > 1):
                pass
            orders.append([number for (number,) in one.epoch_batch_sampler.batches])
    first, second, resumed = orders
    assert first == [*range(BATCHES)]
    assert second == resumed != first
