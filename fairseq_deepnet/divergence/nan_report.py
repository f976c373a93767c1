"""What fairseq found when it gave up: where values or gradients are not finite."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from .events import Finding, Kind, Region, region_text

_DETECTED: Final = re.compile(
    r"(?P<what>NaN|Inf) detected in output of (?P<module>\S*), shape:.*(?P<pass>forward|backward)"
)
_NUMBERS: Final = re.compile(r"\b(nan|inf)\b", re.IGNORECASE)
_DETECTOR: Final = "fairseq.nan_detector"


class NanReport(logging.Handler):
    """Listens to fairseq's NanDetector, which runs a failed update again with hooks attached."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, tuple[str, str]] = {}
        logging.getLogger(_DETECTOR).addHandler(self)

    def detach(self) -> None:
        """Listen no more."""
        logging.getLogger(_DETECTOR).removeHandler(self)
        self.close()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the first module of each pass: forward in forward order, backward in backward's."""
        match = _DETECTED.search(record.getMessage())
        if match:
            self.first.setdefault(match["pass"], (match["what"], match["module"].rstrip(",")))

    @staticmethod
    def blames_numbers(error: FloatingPointError) -> bool:
        """True if numbers are not finite; processes whose gradients differ are another matter."""
        text = str(error)
        return "inconsistent" not in text or _NUMBERS.search(text) is not None

    def finding(
        self,
        error: FloatingPointError,
        update: int,
        norms: Mapping[str, Sequence[float | None]],
        suspected: Sequence[int],
    ) -> Finding:
        """Return what happened, in terms of layers.

        Arguments:
            error: fairseq's
            update: that could not be made
            norms: gradient norms by side and layer, of fairseq's second run of the update; only
                whether they are finite is told, since they are of this process's own batches, not
                divided by their size, and times the loss scale
            suspected: updates at which something was wrong already
        """
        layers = {side: region for side, row in norms.items() if (region := _not_finite(row))}
        what = "the loss scale is at its minimum" if "loss scale" in str(error) else "gradients"
        if what == "gradients":
            what += " are not finite"
        if layers:
            many = sum(last - first + 1 for first, last, _ in layers.values()) > 1
            what += f": {region_text(layers)} {'have' if many else 'has'} no finite gradient"
        if "forward" in self.first:
            kind, module = self.first["forward"]
            what += f"; {kind} comes first from {module or 'the model'} in the forward pass"
        elif "backward" in self.first:
            kind, module = self.first["backward"]
            what += f"; {kind} comes first from {module or 'the model'} in the backward pass"
        values = {
            "error": next(iter(str(error).splitlines()), ""),
            "finite": {side: [_finite(norm) for norm in row] for side, row in norms.items()},
            "first": {way: module for way, (_, module) in self.first.items()},
        }
        started = min([update, *suspected])
        return Finding(Kind.NOT_FINITE, started, what, layers, values)


def _finite(norm: float | None) -> bool | None:
    return None if norm is None else math.isfinite(norm)


def _not_finite(row: Sequence[float | None]) -> Region | None:
    """Return the first and last layer whose gradient is not finite, and the depth."""
    bad = [index for index, norm in enumerate(row, 1) if _finite(norm) is False]
    return (bad[0], bad[-1], len(row)) if bad else None
