"""What an image shows, as numbers: CSV, one a line, for figures of one's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from fairseq_deepnet.tools.plotting.runs import Run
from fairseq_deepnet.tools.plotting.series import has, is_by_layer
from fairseq_deepnet.tools.tables import comma_separated

COLUMNS: Final = ("run", "quantity", "of", "part", "layer", "update", "value")
"""`of` is train or valid for what is logged, a side or nothing for what is measured; a layer is
counted from its stack's input."""


def csv_of(runs: Sequence[Run], shown: Sequence[str], part: str | None = None) -> str:
    """Return everything that runs have of some things; of one part of the layers if it is given."""
    rows = (row for run in runs for show in shown if has(run, show) for row in _rows(run, show))
    return comma_separated([COLUMNS, *(row for row in rows if part in (None, row[3]))])


def _rows(run: Run, show: str) -> Iterator[tuple[object, ...]]:
    curves = run.metrics.get(show)
    for what in ("train", "valid") if curves else ():
        for update, value in getattr(curves, what):
            yield run.name, show, what, None, None, update, value
    for key, grid in run.grids.items():
        if key.quantity == show:
            for place, update in enumerate(grid.updates.tolist()):
                for layer in grid.given[place].nonzero()[0].tolist():
                    number = layer + 1 if is_by_layer(show) else None
                    value = grid.values[place, layer].item()
                    yield run.name, show, key.side, key.part, number, update, value
