"""Report of fairseq's NanDetector: the layers with values or gradients that are not finite."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from .events import Finding, Kind, region_text

_DETECTED: Final = re.compile(
    r"(?P<what>NaN|Inf) detected in output of (?P<module>\S*), shape:.*(?P<pass>forward|backward)"
)
_NUMBERS: Final = re.compile(r"\b(nan|inf)\b", re.IGNORECASE)
_DETECTOR: Final = logging.getLogger("fairseq.nan_detector")


class NanReport(logging.Handler):
    """Captures fairseq's NanDetector, which repeats a failed update with hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, tuple[str, str]] = {}
        _DETECTOR.addHandler(self)

    def detach(self) -> None:
        """Stop capturing."""
        _DETECTOR.removeHandler(self)
        self.close()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the first module of each pass, in the order of that pass."""
        match = _DETECTED.search(record.getMessage())
        if match:
            self.first.setdefault(match["pass"], (match["what"], match["module"].rstrip(",")))

    @staticmethod
    def blames_numbers(error: FloatingPointError) -> bool:
        """Return True for numbers that are not finite, False for gradients that differ between
        processes.
        """
        text = str(error)
        return "inconsistent" not in text or _NUMBERS.search(text) is not None

    def finding(
        self,
        error: FloatingPointError,
        update: int,
        norms: Mapping[str, Sequence[float | None]],
        suspected: Sequence[int],
    ) -> Finding:
        """Describe what happened in terms of layers.

        Args:
            error: fairseq's error
            update: the failed update
            norms: gradient norms by side and layer of fairseq's repetition of the update. Only
                their
                finiteness is used: they are of this process's own batches, not normalised,
                    and times the
                loss scale
            suspected: updates at which something was wrong before
        """
        finite = {
            side: [None if norm is None else math.isfinite(norm) for norm in row]
            for side, row in norms.items()
        }
        layers = {}
        for side, row in finite.items():
            bad = [index for index, is_finite in enumerate(row, 1) if is_finite is False]
            if bad:
                layers[side] = bad[0], bad[-1], len(row)
        at_minimum = "loss scale" in str(error)
        what = "the loss scale is at its minimum" if at_minimum else "gradients are not finite"
        if layers:
            many = sum(last - first + 1 for first, last, _ in layers.values()) > 1
            what += f": {region_text(layers)} {'have' if many else 'has'} no finite gradient"
        way = next((way for way in ("forward", "backward") if way in self.first), None)
        if way is not None:
            kind, module = self.first[way]
            what += f"; {kind} comes first from {module or 'the model'} in the {way} pass"
        values = {
            "error": next(iter(str(error).splitlines()), ""),
            "finite": finite,
            "first": {way: module for way, (_, module) in self.first.items()},
        }
        return Finding(Kind.NOT_FINITE, min([update, *suspected]), what, layers, values)
