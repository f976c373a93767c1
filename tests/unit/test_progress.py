"""The screen view of a training log: short lines, and nothing lost that explains a crash."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from fairseq_deepnet.tools.training import progress

STAMP = "2026-01-02 03:04:05"
INTERVAL = (
    f"{STAMP} | INFO | train_inner | "
    '{"epoch": 2, "update": 1.5, "loss": "6.123", "nll_loss": "5", "wps": "2117.4", "ups": "1.1", '
    '"num_updates": "%d", "lr": "0.0002", "gnorm": "1.234"}'
)
VALID = (
    f"{STAMP} | INFO | valid | "
    '{"epoch": 2, "valid_loss": "5.1", "valid_nll_loss": "3.9", "valid_ppl": "14.93", '
    '"valid_num_updates": "150", "valid_best_loss": "%s"}'
)
TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 1, in <module>
    main()
RuntimeError: out of luck
"""


def test_an_interval_is_one_short_line_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    view = progress.Progress(max_update=400)
    first = view.show(INTERVAL % 100)
    now = 1050.0
    second = view.show(INTERVAL % 200)
    assert first == (
        "update 100/400  epoch  2  loss 6.123  grad norm 1.23  lr 2.0e-04  2,117 tokens/s  0:00:00"
    )
    # 100 updates took 50 s, and 200 are left
    assert second is not None
    assert second.endswith("0:00:50  left 0:01:40")


def test_a_traceback_is_shown_whole_and_a_printed_model_is_not() -> None:
    view = progress.Progress()
    model = [f"{STAMP} | INFO | fairseq_cli.train | Model(", "  (encoder): Encoder(", "  )", ")"]
    assert [view.show(line) for line in model] == [None] * 4
    shown = filter(None, map(view.show, TRACEBACK.splitlines()))
    assert "\n".join(shown) == TRACEBACK.strip()


TORCHRUN = """W1124 01:56:06.494000 21632 torch/distributed/elastic/agent/server/api.py:7] Got 15
Traceback (most recent call last):
  File "/env/bin/torchrun", line 6, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
====================================================
fairseq-train FAILED
Root Cause (first observed failure):
"""


def test_torchruns_report_on_its_processes_hides_no_error_of_theirs() -> None:
    view = progress.Progress()
    error = "fairseq_deepnet: error: --lr 0"  # the supervisor ends with it
    text = f"{TORCHRUN}{TRACEBACK}{TORCHRUN}{error}\n{TORCHRUN}{VALID % '5.0'}\n"
    shown = "\n".join(filter(None, map(view.show, text.splitlines())))
    assert shown == f"{TRACEBACK}update 150  valid nll 3.900  perplexity 14.93"


def test_every_line_is_logged_even_where_it_is_no_utf8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text("from before\n", encoding="utf-8")
    given = f"noise \u2028 here\n{INTERVAL % 200}\n".encode() + b"\xff\n" + TRACEBACK.encode()
    reads, writes = os.pipe()
    os.write(writes, given)
    os.close(writes)
    before = signal.getsignal(signal.SIGINT)
    try:
        progress.follow(reads, log, progress.Progress(200))
    finally:
        signal.signal(signal.SIGINT, before)
    assert log.read_text(encoding="utf-8") == (
        f"from before\nnoise \u2028 here\n{INTERVAL % 200}\n\\xff\n{TRACEBACK}"
    )
    assert capsys.readouterr().out.endswith(TRACEBACK)


def test_lines_wait_while_the_disk_is_full_and_the_screen_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write, calls = os.write, 0

    def full_for_a_while(file: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls in (2, 3):
            raise OSError(28, "No space left on device")
        return write(file, data[:7])  # a write may be short, too

    reads, writes = os.pipe()
    text = "".join(f"noise {number}\n" for number in range(5))
    os.write(writes, text.encode())
    os.close(writes)
    monkeypatch.setattr(os, "write", full_for_a_while)
    before = signal.getsignal(signal.SIGINT)
    try:
        progress.follow(reads, tmp_path / "train.log", progress.Progress(5))
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "train.log").read_text(encoding="utf-8") == text
    said = capsys.readouterr().out
    assert said.count("train.log cannot be written (No space left on device); its lines wait") == 1
    assert "noise 4" in said
