"""What all images look like, and how they come into files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000", "#56B4E9")
"""Okabe and Ito's, which colour-blind readers tell apart."""


def quiet_matplotlib() -> Any:
    """matplotlib, drawing into files."""
    # fairseq sets the root logger to its own taste; matplotlib would list every font it weighs
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    import matplotlib

    matplotlib.use("Agg")
    return matplotlib


def clean(axes: Any) -> None:
    """What all figures here look like: a light grid, no frame above and on the right."""
    axes.grid(which="major", alpha=0.35)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Any, file: Path) -> None:
    """Write an image so that it is there whole or not at all, and close the figure."""
    from matplotlib import pyplot

    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.stem}.part{file.suffix}")
    try:
        figure.savefig(unfinished, dpi=150)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
        pyplot.close(figure)
