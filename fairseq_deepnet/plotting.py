"""Draw the training curves of runs: loss against updates, from the JSON lines of fairseq's log."""

from __future__ import annotations

import argparse
import json
import logging
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# fairseq's logger name stands between bars before the JSON: "... | INFO | train_inner | {...}".
_PROGRESS = re.compile(r"\| (train_inner|valid) \| (\{.*\})\s*$")
METRICS = {
    "loss": "training objective (bits per token)",
    "nll_loss": "negative log-likelihood (bits per token)",
}


@dataclass
class Curves:
    """What one run's log tells: for train and valid, updates and losses (base 2, per token)."""

    name: str
    train: list[tuple[int, float]] = field(default_factory=list)
    valid: list[tuple[int, float]] = field(default_factory=list)


def _records(log: Path) -> Iterator[tuple[str, dict[str, object]]]:
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            match = _PROGRESS.search(line)
            if match:
                try:
                    yield match[1], json.loads(match[2])
                except json.JSONDecodeError:
                    continue  # the line that a killed run was writing


def _number(value: object) -> float:
    """A number of fairseq's log, which writes them as strings; nan for what is none."""
    try:
        return float(str(value))
    except ValueError:
        return math.nan


def read_curves(run: Path, metric: str = "loss") -> Curves:
    """Read the curves of a run folder (or of a log file).

    A resumed run writes some updates twice: the later line counts. Losses that are not finite are
    kept, for they show where a run broke.

    Raises FileNotFoundError for a run without a log, ValueError for a log without progress.
    """
    log = run / "train.log" if run.is_dir() else run
    if not log.is_file():
        raise FileNotFoundError(f"{run} has no train.log; give a run folder that train.sh made")
    name = run.resolve().name if run.is_dir() else run.stem
    points: dict[str, dict[int, float]] = {"train_inner": {}, "valid": {}}
    for kind, record in _records(log):
        prefix = "valid_" if kind == "valid" else ""
        update, loss = record.get(f"{prefix}num_updates"), record.get(f"{prefix}{metric}")
        if update is not None and loss is not None:
            points[kind][int(_number(update))] = _number(loss)
    if not any(points.values()):
        raise ValueError(
            f"{log} has no progress lines; train with --log-format json, and wait for the first one"
        )
    return Curves(name, sorted(points["train_inner"].items()), sorted(points["valid"].items()))


def plot_curves(runs: list[Curves], file: Path, metric: str = "loss", title: str = "") -> None:
    """Draw the curves of several runs into one image: train as lines, valid as dots."""
    matplotlib = quiet_matplotlib()
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for number, run in enumerate(runs):
        colour = f"C{number}"
        train, valid = list(zip(*run.train, strict=True)), list(zip(*run.valid, strict=True))
        if train:
            axes.plot(*train, color=colour, linewidth=1.8, label=f"{run.name}, train")
        if valid:
            axes.plot(
                *valid, "o--", color=colour, markersize=5, linewidth=0.8, label=f"{run.name}, valid"
            )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_minor_formatter(matplotlib.ticker.LogFormatter(minor_thresholds=(2, 0.6)))
    axes.set_xlabel("updates (logarithmic)")
    axes.set_ylabel(METRICS[metric])
    axes.set_title(title)
    clean(axes)
    axes.grid(which="minor", alpha=0.15)
    axes.legend(frameon=False)
    save(figure, file)


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `deepnet plot`."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder (or its log)")
    parser.add_argument(
        "--out", type=Path, required=True, help="image to write: .png, .pdf or .svg"
    )
    parser.add_argument(
        "--metric", choices=METRICS, default="loss", help="loss (label-smoothed) or nll_loss"
    )
    parser.add_argument("--title", default="", help="a title above the curves")


def run(args: argparse.Namespace) -> int:
    """Read the logs and draw."""
    if args.out.suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(f"--out {args.out}: the name must end in .png, .pdf or .svg")
    curves = [read_curves(run, args.metric) for run in args.runs]
    plot_curves(curves, args.out, args.metric, args.title)
    print(f"{args.out}: {len(curves)} run{'s' if len(curves) > 1 else ''}", file=sys.stderr)
    return 0
