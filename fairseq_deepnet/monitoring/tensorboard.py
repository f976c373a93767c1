"""Monitored values as TensorBoard scalars, beside fairseq's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter


def scalars(values: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Tags and numbers: quantity, quantity/side, quantity/side/part/layer (counted from 1)."""
    for quantity, value in values.items():
        if not isinstance(value, dict):
            yield quantity, value
            continue
        for side, parts in value.items():
            if not isinstance(parts, dict):
                yield f"{quantity}/{side}", parts
                continue
            for part, row in parts.items():
                for layer, number in enumerate(row, start=1):
                    if number is not None:
                        yield f"{quantity}/{side}/{part}/{layer:04d}", number


class EventWriter:
    """Writes into the folder `monitor` of fairseq's --tensorboard-logdir; nowhere if there is none.

    Args:
        folder: that of --tensorboard-logdir, or None.
    """

    def __init__(self, folder: str | None) -> None:
        self.folder = Path(folder) / "monitor" if folder else None
        self._writer: SummaryWriter | None = None

    def write(self, update: int, values: dict[str, Any]) -> None:
        """All values of one update."""
        if self.folder is None:
            return
        if self._writer is None:
            # a run that goes on makes later updates again: TensorBoard drops the old ones
            self._writer = SummaryWriter(str(self.folder), purge_step=update)
        for tag, number in scalars(values):
            self._writer.add_scalar(tag, number, update)
        self._writer.flush()
