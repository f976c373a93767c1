"""The thread that hears signals: what it does before a training, and for processes spawned here."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest

from fairseq_deepnet import preemption
from fairseq_deepnet.preemption import PREEMPTED, UNSAVED, Listener


class EndedError(Exception):
    """Stands for the end of the process."""

    def __init__(self, status: int) -> None:
        self.status = status


class NoMoreError(Exception):
    """The thread waits for a signal that never comes."""


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Listener:
    """A listener without thread and handlers."""

    def end(status: int) -> None:
        raise EndedError(status)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(sys, "argv", ["fairseq-train"])
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    found = Listener.__new__(Listener)
    found.heard, found.training, found.grace = None, None, 60.0
    return found


def hears(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, signals: Sequence[signal.Signals | None]
) -> None:
    """Let it hear these, one after the other."""
    coming: Iterator[signal.Signals | None] = iter(signals)

    def following(_: float) -> signal.Signals | None:
        try:
            return next(coming)
        except StopIteration:
            raise NoMoreError from None

    monkeypatch.setattr(listener, "_next", following)


def test_one_process_alone_ends_where_the_training_has_not_begun(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hears(listener, monkeypatch, [None, signal.SIGTERM])
    with pytest.raises(EndedError) as ended:
        listener._listen()
    assert ended.value.status == PREEMPTED
    assert capsys.readouterr().err == "fairseq_deepnet: SIGTERM: before the training began\n"


def test_signals_are_passed_on_to_spawned_processes(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, int]] = []

    def kill(pid: int, number: int) -> None:
        sent.append((pid, number))
        if pid == 8:
            raise ProcessLookupError

    monkeypatch.setattr(os, "kill", kill)
    spawned = [SimpleNamespace(pid=pid) for pid in (7, 8, None)]
    monkeypatch.setattr(multiprocessing.process, "_children", spawned)
    hears(listener, monkeypatch, [signal.SIGUSR1, signal.SIGTERM])
    with pytest.raises(NoMoreError):
        listener._listen()
    both = {signal.SIGUSR1, signal.SIGTERM}
    assert set(sent) == {(pid, number) for pid in (7, 8) for number in both}


@pytest.mark.parametrize(("saved", "status"), [(True, PREEMPTED), (False, UNSAVED)])
def test_a_second_signal_ends_an_update_that_does_not(
    listener: Listener,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    saved: bool,
    status: int,
) -> None:
    now = iter(range(0, 1000, 10))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))
    listener.training = SimpleNamespace(is_saved=lambda: saved)  # type: ignore[assignment]
    hears(listener, monkeypatch, [signal.SIGTERM, signal.SIGTERM])
    with pytest.raises(EndedError) as ended:
        listener._listen()
    assert ended.value.status == status
    said = capsys.readouterr().err
    assert said.startswith("fairseq_deepnet: SIGTERM: a second signal")
    assert ("is lost" in said) is not saved


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (PREEMPTED, PREEMPTED),
        (-signal.SIGTERM, PREEMPTED),
        (-signal.SIGKILL, None),
        (1, None),
    ],
)
def test_fairseq_train_ends_as_its_spawned_processes_do(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, code: int, status: int | None
) -> None:
    told = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: told.append(error))
    preemption._end_as_spawned_processes_do(listener)
    listener.heard = signal.SIGTERM
    error = RuntimeError("a process has ended")
    error.exit_code = code  # type: ignore[attr-defined]
    if status is None:
        sys.excepthook(RuntimeError, error, None)
        assert len(told) == 1
    else:
        with pytest.raises(SystemExit) as ended:
            sys.excepthook(RuntimeError, error, None)
        assert ended.value.code == status
        assert told == []
