"""Common style of all images, and writing them to files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final, NamedTuple

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000", "#56B4E9")
"""Palette of Okabe and Ito, which colour-blind readers can distinguish."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "h")
BROKEN: Final = "#d62728"
"""Colour of values that are not finite."""
ABSENT: Final = "#e4e4e4"
"""Colour of missing measurements."""
CROSS: Final[dict[str, Any]] = {"marker": "x", "markersize": 8, "markeredgewidth": 2}
"""Marker of a run that diverged."""


class Look(NamedTuple):
    """Colour, marker and line style of a line."""

    color: str
    marker: str
    linestyle: str


def look_of(number: int) -> Look:
    """Return the look of a line by its index among those it is compared with."""
    # colours come back from the eighth line on, with other markers and in dashes and dots
    again = number // len(COLOURS)
    return Look(colour_of(number), MARKERS[(number + again) % len(MARKERS)], "-." if again else "-")


def colour_of(number: int) -> str:
    """Return the colour of a line by its index."""
    return COLOURS[number % len(COLOURS)]


def quiet_matplotlib() -> Any:
    """Return matplotlib, configured to draw into files."""
    # fairseq sets the root logger to its own taste; matplotlib would list every font it weighs
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    import matplotlib

    matplotlib.use("Agg")
    return matplotlib


def new_figure(rows: int, columns: int, size: tuple[float, float], share: bool = False) -> Any:
    """Return a figure and its axes, rows x columns; `share`: all have the same limits."""
    quiet_matplotlib()
    from matplotlib import pyplot

    return pyplot.subplots(
        rows, columns, figsize=size, squeeze=False, sharex=share, sharey=share, layout="constrained"
    )


def clean(axes: Any) -> None:
    """Add a light grid, and remove the frame above and on the right."""
    axes.grid(which="major", alpha=0.35)
    axes.spines[["top", "right"]].set_visible(False)


def handle(label: str, **look: Any) -> Any:
    """Return an entry of a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **look)


def save(figure: Any, file: Path) -> None:
    """Write an image atomically and close the figure."""
    from matplotlib import pyplot

    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.stem}.part{file.suffix}")
    try:
        figure.savefig(unfinished, dpi=150)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
        pyplot.close(figure)
