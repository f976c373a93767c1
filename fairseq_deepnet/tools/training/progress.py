"""fairseq-train's log for people: everything into train.log, one short line per interval on screen.

The supervisor runs it in a process of its own, with only the standard library. A line that is not
understood is shown as it is: nothing that could explain a crash is hidden. Only torchrun's report
on its own processes is left out, and the one line of an error, which the supervisor ends with.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

_RECORD = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \| (?P<level>\w+) \| (?P<name>\S+) \| (?P<text>.*)"
)
ERROR = "fairseq_deepnet: error: "
"""Beginning of the line that ends fairseq-train where the user can fix what is wrong."""
_TORCHRUN = re.compile(r"[IWE]\d{4} [\d:.]+ .*torch/distributed/|  File .*[/ ]torchrun\b")
_TRACEBACK = "Traceback (most recent call last):"
_WORTH_SHOWING = re.compile(
    r"done training|early stop|[Ss]topping training|gradient overflow|OOM|samples have invalid"
)


def clock(seconds: float) -> str:
    """Return 65 as "0:01:05"."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


class Progress:
    """Turns log lines into what is worth a line on a terminal.

    Args:
        max_update: updates the run ends at, for the time left; None where it is not known
    """

    def __init__(self, max_update: int | None = None) -> None:
        self.max_update = max_update
        self.started = time.monotonic()
        self.first: tuple[float, int] | None = None
        self.continues = False
        self.traceback = False  # the line before begins one, and the next shows whose it is
        self.torchruns = False  # the lines are torchrun's report on its processes

    def show(self, line: str) -> str | None:
        """Return what to print for a line of the log; None for one that is in train.log only."""
        text = line.rstrip("\n")
        if text == _TRACEBACK:
            self.traceback = True
            return None
        is_torchruns = _TORCHRUN.match(text) is not None
        if self.traceback:
            self.traceback, self.torchruns, self.continues = False, is_torchruns, True
            return None if is_torchruns else f"{_TRACEBACK}\n{text}"
        if is_torchruns or text.startswith(ERROR):
            self.torchruns, self.continues = is_torchruns, False
            return None
        match = _RECORD.fullmatch(text)
        if match is None and self.torchruns:
            return None
        if match is not None:
            self.torchruns = False
            shown = self._show_record(match)
            self.continues = shown is not None
            return shown
        # a continuation (of a printed model, a traceback) goes where its first line goes
        self.continues |= bool(text) and not text.startswith((" ", ")", "\t"))
        return text if self.continues else None

    def _show_record(self, match: re.Match[str]) -> str | None:
        text = match["text"]
        if text.startswith("{"):
            try:
                values = json.loads(text)
            except ValueError:
                return None  # the configuration, as Python writes a dictionary
            return self._show_values(match["name"], values) if isinstance(values, dict) else None
        if match["level"] != "INFO":
            return f"{match['level'].lower()}: {text}"
        return text if _WORTH_SHOWING.search(text) else None

    def _show_values(self, tag: str, values: dict[str, Any]) -> str | None:
        if tag == "train_inner":
            return self._show_interval(values)
        if tag == "train":
            return None
        loss = values.get(f"{tag}_nll_loss") or values.get(f"{tag}_loss")
        if loss is None:
            return None
        updates = int(float(values.get(f"{tag}_num_updates", 0)))
        line = f"update {updates}  {tag} nll {float(loss):.3f}"
        if f"{tag}_ppl" in values:
            line += f"  perplexity {float(values[f'{tag}_ppl']):.2f}"
        best = values.get(f"{tag}_best_loss")
        if best is not None and f"{tag}_loss" in values:
            is_best = float(values[f"{tag}_loss"]) <= float(best)
            line += "  best so far" if is_best else ""
        return line

    def _show_interval(self, values: dict[str, Any]) -> str:
        updates = int(float(values.get("num_updates", 0)))
        width = len(str(self.max_update)) if self.max_update else 6
        total = f"/{self.max_update}" if self.max_update else ""
        parts = [f"update {updates:>{width}}{total}", f"epoch {values.get('epoch', '?'):>2}"]
        texts = {
            "loss": "loss {:.3f}",
            "gnorm": "grad norm {:.2f}",
            "lr": "lr {:.1e}",
            "model_update": "model update {:.2f}",  # of a monitored run
            "wps": "{:,.0f} tokens/s",
        }
        parts += [text.format(float(values[key])) for key, text in texts.items() if key in values]
        now = time.monotonic()
        parts.append(clock(now - self.started))
        then, before = self.first = self.first or (now, updates)
        if self.max_update and updates > before:  # at the pace since the first interval
            pace = (now - then) / (updates - before)
            parts.append(f"left {clock(pace * max(0, self.max_update - updates))}")
        return "  ".join(parts)


class Log:
    """A log file that survives a full disk: lines wait in memory until they can be written."""

    LIMIT = 1 << 24
    """Bytes that may wait; older ones are given up."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._waiting = b""

    def write(self, line: bytes) -> str:
        """Append a line, after those that wait; return the reason if it has to wait itself."""
        self._waiting += line
        try:
            while self._waiting:
                self._waiting = self._waiting[os.write(self._file, self._waiting) :]
        except OSError as error:
            self._waiting = self._waiting[-self.LIMIT :]
            return str(error.strerror)
        return ""


def follow(source: int, path: Path, progress: Progress) -> None:
    """Append every line to the log and show what is worth it, until the source ends.

    It never ends before: a training whose output nobody reads stops at the first full pipe.
    """
    # Ctrl-C ends fairseq-train, whose last lines are still to be logged
    interrupted: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number))
    log, problem = Log(path), ""
    with open(source, "rb") as lines:
        for line in lines:
            readable = line.decode("utf-8", errors="backslashreplace")
            before, problem = problem, log.write(readable.encode())
            text = progress.show(readable)
            if problem and not before:
                warning = f"warning: {path.name} cannot be written ({problem}); its lines wait"
                text = f"{warning}\n{text}" if text else warning
            if text is not None and not interrupted:
                with contextlib.suppress(OSError, ValueError):  # the terminal is gone
                    print(text, flush=True)
    log.write(b"")
