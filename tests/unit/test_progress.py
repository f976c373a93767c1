"""Short lines for a training log, including everything that explains a crash."""

from __future__ import annotations

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


def test_an_interval_is_one_short_line_with_the_remaining_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    view = progress.Progress(max_update=400)
    first = view.show(INTERVAL % 100)
    now = 1050.0
    second = view.show(INTERVAL % 200)
    assert first == (
        "update 100/400  epoch 2  train nll 5.000  grad norm 1.23  lr 2.0e-04  2,117 tokens/s"
    )
    # 100 updates took 50 s, and 200 remain
    assert second is not None
    assert second.endswith("tokens/s  left 0:01:40")
    for line in ("Saved checkpoint b.pt (epoch 4 @ 210 updates, score 3.9)", "done training"):
        view.show(f"{STAMP} | INFO | fairseq.checkpoint_utils | {line}")
    assert view.updates == 210  # another --log-format shows no values


def test_a_traceback_is_shown_and_a_printed_model_is_not() -> None:
    view = progress.Progress()
    model = [f"{STAMP} | INFO | fairseq_cli.train | Model(", "  (encoder): Encoder(", "  )", ")"]
    assert [view.show(line) for line in model] == [None] * 4
    shown = filter(None, map(view.show, TRACEBACK.splitlines()))
    assert "\n".join(shown) == TRACEBACK.strip()


def test_complete_lines_are_read_as_the_log_grows_even_if_not_utf8(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    view = progress.Progress(200)
    with log.open("ab", buffering=0) as writes, log.open("rb") as reads:
        writes.write(b"noise \xe2\x80")
        assert view.read(reads) == []
        writes.write(b"\xa8 here\n\xff\n" + (VALID % "5.0").encode() + b"\nRuntimeError: out")
        valid = "update 150  valid nll 3.900"
        assert view.read(reads) == ["noise \u2028 here", "\\xff", valid]
        assert view.read(reads, is_over=True) == ["RuntimeError: out"]
