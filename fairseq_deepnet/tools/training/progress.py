"""fairseq-train's log for people: one short line per interval on the screen.

The log has everything. A line that is not understood is shown as it is: nothing that could explain
a crash is hidden.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, BinaryIO, Final

_RECORD: Final = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \| (?P<level>\w+) \| (?P<name>\S+) \| (?P<text>.*)"
)
_WORTH_SHOWING: Final = re.compile(
    r"done training|early stop|[Ss]topping training|gradient overflow|OOM|samples have invalid"
)
_VALUES: Final = {
    "loss": "loss {:.3f}",
    "gnorm": "grad norm {:.2f}",
    "lr": "lr {:.1e}",
    "model_update": "model update {:.2f}",  # of a monitored run
    "wps": "{:,.0f} tokens/s",
}


class Progress:
    """Turns lines of the log into what is worth a line on a terminal.

    Args:
        max_update: updates the run ends at, for the time left; None where it is not known
    """

    def __init__(self, max_update: int | None = None) -> None:
        self.max_update = max_update
        self.started = time.monotonic()
        self.first: tuple[float, int] | None = None
        self.continues = False
        self.rest = b""

    def read(self, log: BinaryIO, is_over: bool = False) -> list[str]:
        """Return what to print of the lines that were added to the log; all of them if it ended."""
        *lines, self.rest = (self.rest + log.read()).split(b"\n")
        if is_over and self.rest:
            lines.append(self.rest)
        shown = (self.show(line.decode("utf-8", errors="backslashreplace")) for line in lines)
        return [text for text in shown if text is not None]

    def show(self, line: str) -> str | None:
        """Return what to print for a line of the log; None for one that is in the log only."""
        match = _RECORD.fullmatch(line)
        if match is None:
            # a continuation (of a printed model, a traceback) goes where its first line goes
            self.continues |= bool(line) and not line.startswith((" ", ")", "\t"))
            return line if self.continues else None
        shown = self._show_record(match["level"], match["name"], match["text"])
        self.continues = shown is not None
        return shown

    def _show_record(self, level: str, name: str, text: str) -> str | None:
        if not text.startswith("{"):
            if level != "INFO":
                return f"{level.lower()}: {text}"
            return text if _WORTH_SHOWING.search(text) else None
        try:
            values = json.loads(text)
        except ValueError:
            return None  # the configuration, as Python writes a dictionary
        if name == "train_inner":
            return "  ".join(self._interval(values))
        loss = values.get(f"{name}_nll_loss") or values.get(f"{name}_loss")
        if loss is None or name == "train":
            return None
        updates = int(float(values.get(f"{name}_num_updates", 0)))
        line = f"update {updates}  {name} nll {float(loss):.3f}"
        if f"{name}_ppl" in values:
            line += f"  perplexity {float(values[f'{name}_ppl']):.2f}"
        best = values.get(f"{name}_best_loss")
        is_best = best is not None and float(values[f"{name}_loss"]) <= float(best)
        return f"{line}  best so far" if is_best else line

    def _interval(self, values: dict[str, Any]) -> Iterator[str]:
        updates = int(float(values.get("num_updates", 0)))
        width = len(str(self.max_update)) if self.max_update else 6
        yield f"update {updates:>{width}}" + (f"/{self.max_update}" if self.max_update else "")
        yield f"epoch {values.get('epoch', '?'):>2}"
        for key, text in _VALUES.items():
            if key in values:
                yield text.format(float(values[key]))
        now = time.monotonic()
        yield _clock(now - self.started)
        then, before = self.first = self.first or (now, updates)
        if self.max_update and updates > before:  # at the pace since the first interval
            pace = (now - then) / (updates - before)
            yield f"left {_clock(pace * max(0, self.max_update - updates))}"


def _clock(seconds: float) -> str:
    """Return 65 as "0:01:05"."""
    return str(timedelta(seconds=int(seconds)))
