"""Checkpoints of fairseq-train: atomic writing, repair and locking."""

import errno
import functools
import logging
import os
import resource
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_deepnet.checkpoints import load_checkpoint, num_updates, save_with_retries
from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.files import try_lock, whole
from tests.integration.conftest import SMALL, TRAIN
from tests.support.training import train_here, train_together

WORDS = ["--arch=deepnet_transformer", *SMALL, *TRAIN, "--disable-validation"]
FOUR = ["--max-update=4", "--save-interval-updates=2"]


@pytest.fixture(scope="module")
def trained(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with checkpoint_1_2.pt, checkpoint_1_4.pt and checkpoint_last.pt (update 4)."""
    folder = tmp_path_factory.mktemp("trained")
    train_here(tiny_data, folder, *WORDS, *FOUR)
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def resumed_from(tiny_data: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> str:
    """Return the checkpoint from which a run to update 6 resumes, according to its log."""
    with caplog.at_level(logging.INFO):
        train_here(tiny_data, folder, *WORDS, "--max-update=6")
    assert num_updates(load_checkpoint(folder / "checkpoint_last.pt")) == 6
    lines = [record.getMessage() for record in caplog.records]
    begun = next(line for line in lines if "Loaded checkpoint" in line or "No existing" in line)
    (warning,) = [line for line in lines if "resuming from" in line]
    return f"{begun.split(' (')[-1]} {warning.split('resuming from ')[1].split(';')[0]}"


@pytest.mark.parametrize("bytes_left", [0, -1])
def test_the_newest_intact_checkpoint_replaces_a_truncated_one(
    bytes_left: int, tiny_data: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    last = folder / "checkpoint_last.pt"
    last.write_bytes(last.read_bytes()[:bytes_left])
    assert resumed_from(tiny_data, folder, caplog) == "epoch 1 @ 4 updates) checkpoint_1_4.pt"


def test_without_a_last_checkpoint_a_run_resumes_from_the_newest(
    tiny_data: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    newest = folder / "checkpoint_1_4.pt"
    newest.write_bytes(newest.read_bytes()[:-7])
    with pytest.raises(KeyboardInterrupt), whole(newest) as part:
        raise KeyboardInterrupt
    part.touch()  # SIGKILL would leave it
    train_here(tiny_data, folder, *WORDS, *FOUR, "--no-save")  # perhaps beside a run that writes it
    assert part.exists()
    (folder / "checkpoint_last.pt").unlink()
    caplog.clear()
    assert resumed_from(tiny_data, folder, caplog) == "epoch 1 @ 2 updates) checkpoint_1_2.pt"
    assert not part.exists()


def test_a_run_without_an_intact_checkpoint_does_not_start_over(
    tiny_data: Path, folder: Path
) -> None:
    for path in folder.glob("*.pt"):
        path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ConfigurationError, match=r"checkpoint_last\.pt is damaged, incomplete"):
        train_here(tiny_data, folder, *WORDS, *FOUR)


def test_an_outdated_last_checkpoint_is_not_used_with_no_last_checkpoints(
    tiny_data: Path, trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copyfile(trained / "checkpoint_1_2.pt", folder / "checkpoint_last.pt")
    words = [*WORDS, "--save-interval-updates=2", "--no-last-checkpoints", "--max-update=4"]
    train_here(tiny_data, folder, *words)
    assert num_updates(load_checkpoint(folder / "checkpoint_last.pt")) == 2
    caplog.clear()
    with caplog.at_level(logging.INFO):
        train_here(tiny_data, folder, *words[:-1], "--max-update=6")
    begun = [line for line in caplog.messages if "Loaded checkpoint" in line]
    assert "(epoch 1 @ 4 updates)" in begun[0]


@pytest.mark.parametrize("option", ["restore-file", "continue-once", "finetune-from-model"])
def test_a_missing_start_is_refused(option: str, tiny_data: Path, tmp_path: Path) -> None:
    words = [*WORDS, f"--{option}={tmp_path / 'mistyped.pt'}"]
    with pytest.raises(ConfigurationError, match=r"mistyped\.pt: there is no such file"):
        train_here(tiny_data, tmp_path / "run", *words)


def on_own_disk(place: Path, rank: int) -> None:
    os.chdir(place / str(rank))


@pytest.mark.parametrize("updates", [(2, None), (None, 2), (4, 2)])
def test_all_nodes_start_from_the_same_checkpoint(
    updates: tuple[int | None, ...], tiny_data: Path, trained: Path, tmp_path: Path
) -> None:
    """Otherwise the processes of other nodes would train other weights, and wait for each other."""
    for rank, update in enumerate(updates):
        folder = tmp_path / str(rank) / "run"
        folder.mkdir(parents=True)
        if update:
            shutil.copy(trained / f"checkpoint_1_{update}.pt", folder / "checkpoint_last.pt")
    begin = functools.partial(on_own_disk, tmp_path)
    ended = train_together(tiny_data, Path("run"), *WORDS, "--max-update=6", begin=begin)
    assert ended == [2, 2]


def test_fine_tuning_ignores_other_checkpoints_in_its_folder(tiny_data: Path, folder: Path) -> None:
    (folder / "checkpoint_last.pt").unlink()
    words = [f"--finetune-from-model={folder / 'checkpoint_1_2.pt'}", "--max-update=1"]
    assert num_updates(train_here(tiny_data, folder, *WORDS, *words)) == 1


def test_a_copy_that_fails_halfway_leaves_the_old_file_and_is_repeated(
    tiny_data: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = Path(shutil.copy(folder / "checkpoint_last.pt", folder / "checkpoint_best.pt"))

    def full(source: Any, target: Any) -> None:
        Path(target).write_bytes(Path(source).read_bytes()[:1000])
        raise OSError(errno.ENOSPC, "No space left on device")

    words = [*WORDS[:-1], "--max-update=6", "--save-interval-updates=6"]  # with validation
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full)
        with pytest.raises(ConfigurationError, match=r"checkpoint_best\.pt was not written: No"):
            train_here(tiny_data, folder, *words)
    assert num_updates(load_checkpoint(best, entire=True)) == 4
    (folder / "checkpoint_last.pt").unlink()  # as if this had been the first save
    train_here(tiny_data, folder, *words)
    assert num_updates(load_checkpoint(best)) == 6


@pytest.fixture
def small_files() -> Iterator[int]:
    """Limit the size of files, so that writing fails as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        yield 20_000
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_failed_write_leaves_existing_checkpoints(
    folder: Path, small_files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    state = {"model": {"w": torch.zeros(small_files)}}
    with pytest.raises(ConfigurationError, match=r"checkpoint_1_4\.pt was not written: File too"):
        save_with_retries(state, folder / "checkpoint_1_4.pt")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_that_returns_is_written_and_a_full_disk_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"model": {"w": torch.zeros(3)}}
    path = tmp_path / "away" / "checkpoint1.pt"
    monkeypatch.setattr(time, "sleep", lambda _: path.parent.mkdir())
    save_with_retries(state, path)
    assert path.is_file()

    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(ConfigurationError, match="was not written: No space left on device"):
        save_with_retries(state, tmp_path / "checkpoint2.pt")
    assert not pauses


def test_two_runs_do_not_share_a_save_dir(tiny_data: Path, tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        assert try_lock(descriptor)
        with pytest.raises(ConfigurationError, match=rf"{tmp_path}: another run writes here"):
            train_here(tiny_data, tmp_path, *WORDS)
        assert [*tmp_path.iterdir()] == []
    finally:
        os.close(descriptor)


def test_a_process_that_opened_a_checkpoint_reads_the_old_bytes(
    tiny_data: Path, folder: Path
) -> None:
    """fairseq would truncate the file, and SIGBUS would end processes that have mapped it."""
    last = folder / "checkpoint_last.pt"
    before = last.read_bytes()
    with last.open("rb") as opened:
        train_here(tiny_data, folder, *WORDS, "--max-update=6", "--save-interval-updates=6")
        assert opened.read() == before
    assert last.read_bytes() != before
    assert last.stat().st_nlink == 1  # `cp` onto one of two hard links would change both files
