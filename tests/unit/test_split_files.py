"""A split checkpoint in one process: what it holds, what it refuses, and the file that it makes."""

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_deepnet import cli, preemption
from fairseq_deepnet.checkpoints import (
    copy_checkpoint,
    load_checkpoint,
    num_updates,
)
from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.save_dir import mend_last
from fairseq_deepnet.sharding import split_files
from fairseq_deepnet.sharding.exchange import Exchange
from fairseq_deepnet.sharding.split_files import Block, Reader, blocks, share_of
from fairseq_deepnet.sharding.split_record import SPLIT, remove_unused_rows, rows_folder
from fairseq_deepnet.signals import UNSAVED
from fairseq_deepnet.tools.joining import joined
from tests.support.rig import MORE, TRAIN, Rig
from tests.support.sharded_process import compare, leave_group

SPLIT_UP = ("--ddp-backend=fully_sharded", "--use-sharded-state")
ADAM = ("--optimizer=adam", "--adam-eps=0.001", "--lr=0.01")
STATE = "last_optimizer_state"


@pytest.fixture(autouse=True)
def _process_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave no group of processes behind, nor torch's hook; blocks are of a few tensors."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(split_files, "BLOCK", 700)
    monkeypatch.setattr("fairseq_deepnet.sharding.trainer.BLOCK", 700)
    yield
    leave_group()


def save(rig: Rig, name: str = "checkpoint_last.pt") -> Path:
    file = Path(rig.cfg.checkpoint.save_dir) / name
    itr = {"epoch": 1, "iterations_in_epoch": 1, "version": 2}
    rig.trainer.consolidate_optimizer()
    rig.trainer.save_checkpoint(str(file), {"train_iterator": itr, "val_loss": None})
    return file


def trained(folder: Path, *arguments: str) -> Rig:
    rig = Rig(folder, *ADAM, *arguments)
    rig.update(TRAIN, MORE)
    return rig


def ordinary(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(path, weights_only=True)
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--share-all-embeddings", "--residual-scheme=rezero"),
        ("--bf16", "--optimizer=fused_adam"),
        ("--fp16", "--fp16-init-scale=4"),
        ("--bf16", "--no-save-optimizer-state"),
    ],
)
def test_joined_it_is_the_ordinary_checkpoint(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = trained(tmp_path, *SPLIT_UP, *arguments)
    file = save(rig)
    assert rig.trainer.split_record is not None
    rig.cfg.distributed_training.use_sharded_state = False
    plain = ordinary(save(rig, "plain.pt"))
    assert file.stat().st_size < (tmp_path / "plain.pt").stat().st_size
    assert cli.main(["join", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}\n"
    joined = ordinary(file)
    assert list(joined) == list(plain)
    assert list(joined["model"]) == list(plain["model"])
    assert compare(plain["model"], joined["model"]) == 0
    assert compare(plain.get(STATE), joined.get(STATE)) == 0
    ties = [len({t.data_ptr() for t in one["model"].values()}) for one in (plain, joined)]
    assert ties[0] == ties[1]
    assert not any((tmp_path / "split").iterdir())


@pytest.mark.parametrize("arguments", [(), ("--bf16",), ("--fp16", "--fp16-init-scale=4")])
def test_a_training_goes_on_from_it(arguments: tuple[str, ...], tmp_path: Path) -> None:
    rig = trained(tmp_path, *SPLIT_UP, *arguments)
    file = save(rig)
    after = Rig(tmp_path, *ADAM, "--ddp-backend=fully_sharded", *arguments, seed=2)
    after.trainer.load_checkpoint(str(file))
    assert after.trainer.get_num_updates() == 1
    for one in (rig, after):
        one.update(MORE)
        one.cfg.distributed_training.use_sharded_state = False
    before, now = (ordinary(save(one, f"{n}.pt")) for n, one in enumerate((rig, after)))
    assert compare(before["model"], now["model"]) == 0
    assert compare(before[STATE], now[STATE]) == 0


def test_who_wants_one_file_is_told_to_join_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save(trained(tmp_path, *SPLIT_UP))
    told = f"checkpoint_last.pt is split, .* first: deepnet join .*{file.name}$"
    with pytest.raises(ConfigurationError, match=told):
        checkpoint_utils.load_checkpoint_to_cpu(str(file))
    with pytest.raises(ConfigurationError, match=told):
        Rig(tmp_path, *ADAM).trainer.load_checkpoint(str(file))
    with pytest.raises(ConfigurationError, match=told):
        load_checkpoint(file)
    out = str(tmp_path / "out")
    for words in (["average", str(file), str(file)], ["export", str(file), "--to", "fairseq"]):
        assert cli.main([*words, "--out", out]) == 2
        assert f"deepnet join {file}" in capsys.readouterr().err
    assert cli.main(["check", str(file)]) == 2
    assert f"deepnet join {file}" in capsys.readouterr().err
    assert cli.main(["join", str(file), "--out", out]) == 0
    assert cli.main(["join", out]) == 2
    assert "is no split checkpoint" in capsys.readouterr().err


def test_a_training_may_write_the_file_that_is_being_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = trained(tmp_path, *SPLIT_UP)
    file = save(rig, "checkpoint_best.pt")
    rig.update(MORE)
    newer = save(rig, "checkpoint2.pt")
    write = torch.save

    def meanwhile(*args: Any, **kwargs: Any) -> None:
        write(*args, **kwargs)
        copy_checkpoint(newer, file)

    monkeypatch.setattr(torch, "save", meanwhile)
    assert cli.main(["join", str(file)]) == 2
    assert "checkpoint_best.pt was written anew meanwhile" in capsys.readouterr().err
    assert num_updates(load_checkpoint(file, entire=True, split=True)) == 2
    assert {path.name for path in tmp_path.iterdir()} == {file.name, newer.name, "split"}
    monkeypatch.setattr(torch, "save", lambda *args: (write(*args), file.unlink()))
    assert cli.main(["join", str(file)]) == 2
    assert not [*tmp_path.glob("*.joined*")]
    copy_checkpoint(newer, file)
    out = tmp_path / "out.pt"
    assert cli.main(["join", str(file), "--out", str(out)]) == 0
    assert num_updates(load_checkpoint(out)) == 2
    copy_checkpoint(newer, file)
    assert cli.main(["join", str(file), "--out", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_other_files_that_are_damaged_or_gone_are_named(tmp_path: Path) -> None:
    file = save(trained(tmp_path, *SPLIT_UP))
    rows = next((tmp_path / "split" / "update_1_1").glob("*.distcp"))
    content = bytearray(rows.read_bytes())
    content[len(content) // 2] ^= 1
    rows.write_bytes(content)
    for read in (
        lambda: load_checkpoint(file, entire=True, split=True),
        lambda: Rig(tmp_path, *ADAM, *SPLIT_UP).trainer.load_checkpoint(str(file)),
    ):
        with pytest.raises(ConfigurationError, match=f"{rows.name} is damaged; copy it again"):
            read()
    rows.unlink()
    with pytest.raises(ConfigurationError, match=f"{rows.name} is gone"):
        load_checkpoint(file, split=True)


def test_a_folder_without_its_small_file_is_no_checkpoint_and_goes(tmp_path: Path) -> None:
    """So it is where the training was killed while it wrote."""
    rig = trained(tmp_path, *SPLIT_UP)
    first = save(rig, "checkpoint1.pt")
    rig.update(MORE)
    save(rig).unlink()
    assert {path.name for path in (tmp_path / "split").iterdir()} == {"update_1_1", "update_2_1"}
    assert mend_last(tmp_path) == first
    assert load_checkpoint(tmp_path / "checkpoint_last.pt", entire=True, split=True)
    (tmp_path / "aside").mkdir()
    first.rename(tmp_path / "aside" / "checkpoint1.pt")
    (tmp_path / "checkpoint_last.pt").unlink()
    assert remove_unused_rows(tmp_path) is None
    assert [path.name for path in (tmp_path / "split").iterdir()] == ["update_1_1"]
    load_checkpoint(tmp_path / "aside" / "checkpoint1.pt", split=True)
    (tmp_path / "checkpoint2.pt").write_bytes(b"cut")
    (tmp_path / "aside" / "checkpoint1.pt").unlink()
    assert remove_unused_rows(tmp_path) == tmp_path / "checkpoint2.pt"
    assert [path.name for path in (tmp_path / "split").iterdir()] == ["update_1_1"]


def test_a_row_of_all_parameters_has_room_for_one_that_had_no_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--fp16; without it, the state of such a parameter is left out."""
    arch = ARCH_MODEL_REGISTRY["deepnet_transformer"]
    build = arch.build_model

    def with_unused(args: Any, task: Any) -> Any:
        model = build(args, task)
        model.encoder.unused = torch.nn.Parameter(torch.ones(4, 3))
        return model

    monkeypatch.setattr(arch, "build_model", with_unused)
    words = ("--fp16", "--fp16-init-scale=4", "--ddp-backend=fully_sharded")
    folders = {tmp_path / "whole": (), tmp_path / "split": SPLIT_UP}
    for folder in folders:
        folder.mkdir()
    rigs = [trained(folder, *words, *more) for folder, more in folders.items()]
    after = Rig(tmp_path, *ADAM, *words)
    whole, small = map(save, rigs)
    state = load_checkpoint(small, entire=True, split=True)
    made = joined(state, rows_folder(small, state), tmp_path)
    assert compare(ordinary(whole)[STATE], made[STATE]) == 0
    assert compare(ordinary(whole)["model"], made["model"]) == 0
    torch.save(made, tmp_path / "joined.pt")
    after.trainer.load_checkpoint(str(tmp_path / "joined.pt"))


def test_rows_are_kept_for_all_that_means_them_by_links_and_deep_below(tmp_path: Path) -> None:
    """A save-dir on one disk, its rows, a checkpoint and the good states on another."""
    save_dir, disk = tmp_path / "run", tmp_path / "disk"
    for folder in (save_dir, disk / "rows", disk / "states"):
        folder.mkdir(parents=True)
    (save_dir / "split").symlink_to(disk / "rows")
    (save_dir / "good_states").symlink_to(disk / "states")
    rig = trained(save_dir, *SPLIT_UP)
    for _ in range(3):
        save(rig)
        rig.update(MORE)
    rig.trainer.remove_unused_rows()
    assert [path.name for path in (disk / "rows").iterdir()] == ["update_3_1"]
    link, moved = save_dir / "checkpoint4.pt", disk / "moved.pt"
    save(rig, link.name).rename(moved)
    link.symlink_to(moved)
    files = [save_dir / "good_states" / "update_5.pt", save_dir / "aside" / "of" / "mine.pt"]
    files[1].parent.mkdir(parents=True)
    for file in files:
        rig.update(MORE)
        save(rig).rename(file)
    assert remove_unused_rows(save_dir) is None
    kept = {path.name for path in (disk / "rows").iterdir()}
    assert kept == {f"update_{number}_1" for number in (4, 5, 6)}
    for file in (link, *files):
        assert load_checkpoint(file, entire=True, split=True)


def test_rows_that_another_training_removes_meanwhile_are_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = trained(tmp_path, *SPLIT_UP)
    write = split_files.save

    def and_remove(*args: Any, **kwargs: Any) -> None:
        write(*args, **kwargs)
        remove_unused_rows(tmp_path)

    monkeypatch.setattr(split_files, "save", and_remove)
    with pytest.raises(ConfigurationError, match=r"update_1_1 was not written: .*another training"):
        save(rig)
    assert not (tmp_path / "checkpoint_last.pt").exists()


def test_an_update_that_is_saved_again_gets_its_own_folder(tmp_path: Path) -> None:
    rig = trained(tmp_path, *SPLIT_UP)
    files = [save(rig, name) for name in ("checkpoint1.pt", "checkpoint_last.pt")]
    folders = [load_checkpoint(file, split=True)[SPLIT]["folder"] for file in files]
    assert folders == ["update_1_1", "update_1_2"]


def test_a_preempted_training_without_room_for_its_rows_is_unsaved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = trained(tmp_path, *SPLIT_UP)
    full = ConfigurationError("split/update_1_1 was not written: no space")
    monkeypatch.setattr("fairseq_deepnet.sharding.trainer.write", Mock(side_effect=full))
    preempted = preemption.Preemption(rig.trainer)
    with pytest.raises(SystemExit) as ended:
        preempted._save(1)
    assert ended.value.code == UNSAVED
    assert not (tmp_path / "checkpoint_last.pt").exists()


def test_what_is_unpickled_runs_no_code(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps({"run": print}))
    with pytest.raises(pickle.UnpicklingError, match=r"it holds builtins\.print"):
        Reader(tmp_path).read_metadata()


def test_the_option_needs_the_backend(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--use-sharded-state without --ddp-backend"):
        Rig(tmp_path, "--use-sharded-state")


@pytest.mark.parametrize("rows", [1, 3, 4, 7, 12])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_processes_share_rows_as_torch_chunks_them(rows: int, size: int) -> None:
    chunks = torch.arange(rows).chunk(size)
    for rank in range(size):
        count, first = share_of(rows, size, rank)
        expected = chunks[rank].tolist() if rank < len(chunks) else []
        assert (count, list(range(first, first + count))) == (len(expected), expected)
        assert 0 <= first <= rows


class One(Exchange):
    """One of three processes, alone."""

    def __init__(self, rank: int) -> None:
        self.size, self.rank = 3, rank


def test_a_block_has_equally_many_rows_of_several_tensors() -> None:
    shapes = {name: torch.Size(size) for name, size in {"a": (4, 2), "b": (4,), "c": (3,)}.items()}
    assert blocks([*shapes], shapes, 1000) == [["a", "b"], ["c"]]
    assert blocks([*shapes], shapes, 4) == [["a"], ["b"], ["c"]]
    whole = [torch.arange(8.0).view(4, 2), torch.arange(4.0)]
    written = torch.full((4, 3), torch.nan)
    for rank in range(3):
        parts = [tensor[2 * rank : 2 * rank + 2] for tensor in whole]
        block = Block(parts, [shapes["a"], shapes["b"]], One(rank))
        items = block.__create_write_items__("a.0", None)
        assert len(items) == (rank < 2)  # ceil(4 / 3) rows each: the last has none
        for item in items:
            assert item.tensor_data is not None
            chunk = item.tensor_data.chunk
            assert item.tensor_data.size == written.shape
            written[chunk.offsets[0] :][: chunk.sizes[0]] = block.joined()
    assert torch.equal(written, torch.cat([whole[0], whole[1][:, None]], dim=1))
