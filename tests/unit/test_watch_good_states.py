"""States to return to: which are kept, and how the last good one is put in its place."""

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_deepnet.checkpoints import LAST
from fairseq_deepnet.divergence import good_states
from fairseq_deepnet.divergence.detectors import LOOKBACK
from tests.support.runs import make_checkpoint


class Saves:
    """As much of fairseq's trainer as saves a state; it is its own iterator over an epoch."""

    should_save_checkpoint_on_current_rank = True
    task = None

    def __init__(self, update: int, room: bool = True) -> None:
        self.update, self.room = update, room

    def consolidate_optimizer(self) -> None: ...

    def state_dict(self) -> dict[str, int]:
        return {"epoch": 1}

    def get_num_updates(self) -> int:
        return self.update

    def save_checkpoint(self, name: str, extra: dict[str, Any]) -> None:
        if not self.room:
            raise OSError(28, "No space left on device")
        Path(name).write_text(str(extra["train_iterator"]), encoding="utf-8")


def save_at(update: int, folder: Path, room: bool = True) -> list[int]:
    """The updates of the states that are there afterwards."""
    trainer = Saves(update, room)
    good_states.save(trainer, trainer, folder)
    names = [path.name for path in (folder / "good_states").iterdir()]
    return sorted(int(name.removeprefix("update_").removesuffix(".pt")) for name in names)


@pytest.mark.parametrize("interval", [7, 50, 100, 250, 1000])
def test_a_state_from_before_trouble_that_took_long_to_be_found_is_kept(
    interval: int, tmp_path: Path
) -> None:
    for update in range(interval, 6 * max(interval, LOOKBACK), interval):
        kept = save_at(update, tmp_path)
        assert kept[-1] == update
        assert len(kept) <= 3
        if update - interval >= LOOKBACK:
            assert update - 2 * (LOOKBACK + interval) < kept[0] <= update - LOOKBACK
    assert len(kept) == (2 if interval >= LOOKBACK else 3)


def test_a_state_that_could_not_be_saved_costs_none_of_the_others(tmp_path: Path) -> None:
    save_at(1000, tmp_path)
    save_at(2000, tmp_path)
    with pytest.raises(OSError, match="No space left"):
        save_at(3000, tmp_path, room=False)
    names = sorted(path.name for path in (tmp_path / "good_states").iterdir())
    assert names == ["update_1000.pt", "update_2000.pt"]


def test_the_last_good_state_takes_no_room_and_is_there_whole(tmp_path: Path) -> None:
    save_at(1000, tmp_path)
    source, target = tmp_path / "good_states" / "update_1000.pt", tmp_path / good_states.LAST_GOOD
    (tmp_path / f"{target.name}.part").write_text(
        "half, of a training that was killed", encoding="utf-8"
    )
    for _ in range(2):  # the second time it is the same file already
        good_states.copy(source, target)
        assert target.samefile(source)
        assert {path.name for path in tmp_path.iterdir()} == {"good_states", target.name}
    source.unlink()
    assert "epoch" in target.read_text(encoding="utf-8")


def test_what_people_write_over_in_place_is_never_linked(tmp_path: Path) -> None:
    save_at(1000, tmp_path)
    source, last = tmp_path / "good_states" / "update_1000.pt", tmp_path / LAST
    part = tmp_path / "good.part"
    good_states.copy(source, part)
    part.replace(last)
    whole = last.read_text(encoding="utf-8")
    last.write_text("a later update", encoding="utf-8")
    assert source.read_text(encoding="utf-8") == whole
    good_states.copy(last, tmp_path / good_states.LAST_GOOD)
    assert not last.samefile(tmp_path / good_states.LAST_GOOD)


def test_where_nothing_can_be_linked_the_last_good_state_is_copied_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise OSError(1, "Operation not permitted")

    def full(_: Path, target: Path) -> None:
        target.write_text("half", encoding="utf-8")
        raise OSError(28, "No space left on device")

    save_at(1000, tmp_path)
    source, target = tmp_path / "good_states" / "update_1000.pt", tmp_path / good_states.LAST_GOOD
    monkeypatch.setattr(os, "link", refused)
    good_states.copy(source, target)
    assert not target.samefile(source)
    assert target.read_text(encoding="utf-8") == source.read_text(encoding="utf-8")
    target.unlink()
    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space left"):
        good_states.copy(source, target)
    assert [path.name for path in tmp_path.iterdir()] == ["good_states"]


def test_trouble_right_after_a_resume_goes_back_to_what_was_resumed_and_not_to_the_beginning(
    tmp_path: Path,
) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint_last.pt", 100)
    state = torch.load(checkpoint, weights_only=True)
    state["extra_state"] = {"train_iterator": {"epoch": 1}}
    torch.save(state, checkpoint)
    start = good_states.Start(100, time.time() + 60)
    for trouble in (101, 102, 150):
        assert good_states.newest(tmp_path, trouble, start) == (100, checkpoint)
    assert good_states.newest(tmp_path, 101, good_states.Start(0, time.time() + 60)) is None
