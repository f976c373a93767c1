"""Short lines on the screen, made from fairseq-train's complete log.

Lines in an unknown format are shown unchanged, because they may explain a crash.
"""

import json
import re
import time
from datetime import timedelta
from typing import Any, BinaryIO, Final

_RECORD: Final = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \| (?P<level>\w+) \| (?P<name>\S+) \| (?P<text>.*)"
)
_WORTH_SHOWING: Final = re.compile(
    r"done training|early stop|[Ss]topping training|gradient overflow|OOM|samples have invalid"
)
_CHECKPOINT: Final = re.compile(r"(?:Loaded|Saved) checkpoint .* @ (\d+) updates")
_VALUES: Final = {
    "epoch": "epoch {:.0f}",
    "nll": "train nll {:.3f}",
    "gnorm": "grad norm {:.2f}",
    "lr": "lr {:.1e}",
    "wps": "{:,.0f} tokens/s",
}


class Progress:
    """Filter that selects and shortens the lines of a log.

    Args:
        max_update: last update of the run, used to estimate the remaining time; 0 if unknown

    Attributes:
        updates: number of the last update in the log
    """

    def __init__(self, max_update: int = 0) -> None:
        self.max_update, self.updates = max_update, 0
        self.first: tuple[float, int] | None = None  # time and update of the first interval
        self.is_shown = False  # True if the previous line was shown
        self.rest = b""

    def read(self, log: BinaryIO, is_over: bool = False) -> list[str]:
        """Return the text for the log's new lines, and for an unfinished line if `is_over`."""
        *lines, self.rest = (self.rest + log.read()).split(b"\n")
        if is_over and self.rest:
            lines.append(self.rest)
        texts = (self.show(line.decode("utf-8", errors="backslashreplace")) for line in lines)
        return [text for text in texts if text is not None]

    def show(self, line: str) -> str | None:
        """Return the text to print for a line of the log, or None."""
        match = _RECORD.fullmatch(line)
        if match is None:
            # the lines of a printed model or a traceback follow their first line
            self.is_shown |= bool(line) and not line.startswith((" ", ")", "\t"))
            return line if self.is_shown else None
        text = self._show_record(match["level"], match["name"], match["text"])
        self.is_shown = text is not None
        return text

    def _show_record(self, level: str, name: str, text: str) -> str | None:
        if match := _CHECKPOINT.match(text):  # in any --log-format, and if no update remains
            self.updates = int(match[1])
        if not text.startswith("{"):
            if level != "INFO":
                return f"{level.lower()}: {text}"
            return text if _WORTH_SHOWING.search(text) else None
        try:
            values = json.loads(text)
        except ValueError:
            return None  # the configuration, printed as a Python dictionary
        self.updates = int(float(values.get("num_updates") or values.get(f"{name}_num_updates", 0)))
        prefix = "" if name == "train_inner" else f"{name}_"
        # without label smoothing; some criterions log only their loss
        nll = values.get(f"{prefix}nll_loss") or values.get(f"{prefix}loss")
        if name == "train_inner":
            return self._show_interval(values if nll is None else values | {"nll": nll})
        if nll is None or name == "train":
            return None
        return f"update {self.updates}  {name} nll {float(nll):.3f}"

    def _show_interval(self, values: dict[str, Any]) -> str:
        updates, now = self.updates, time.monotonic()
        parts = [f"update {updates}" + (f"/{self.max_update}" if self.max_update else "")]
        parts += [_VALUES[key].format(float(values[key])) for key in _VALUES if key in values]
        start, before = self.first = self.first or (now, updates)
        if self.max_update and updates > before:  # at the speed since the first interval
            remaining = (now - start) / (updates - before) * max(0, self.max_update - updates)
            parts.append(f"left {timedelta(seconds=int(remaining))}")
        return "  ".join(parts)
