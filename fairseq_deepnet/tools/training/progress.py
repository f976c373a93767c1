"""fairseq-train's log for people: everything into train.log, one short line an interval on screen.

The supervisor has a process of its own for it, on the standard library alone. A line that is not
understood is shown as it is: nothing that could explain a crash is hidden.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
from pathlib import Path
from typing import Any

_RECORD = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \| (?P<level>\w+) \| (?P<name>\S+) \| (?P<text>.*)"
)
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

    def show(self, line: str) -> str | None:
        """Return what to print for a line of the log; None for one that is in train.log only."""
        text = line.rstrip("\n")
        match = _RECORD.fullmatch(text)
        if match is not None:
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


def follow(source: int, log: Path, progress: Progress) -> None:
    """Append every line to the log and show what is worth it, until the source ends."""
    interrupted = False

    def note(*_: object) -> None:
        nonlocal interrupted
        interrupted = True

    # Ctrl-C ends fairseq-train, whose last lines are still to be logged
    signal.signal(signal.SIGINT, note)
    with (
        open(source, encoding="utf-8", errors="backslashreplace") as lines,
        log.open("a", encoding="utf-8") as file,
    ):
        for line in lines:
            file.write(line)
            file.flush()
            shown = progress.show(line)
            if shown is not None and not interrupted:
                with contextlib.suppress(OSError):  # the terminal is gone; the log goes on
                    print(shown, flush=True)
