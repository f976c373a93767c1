"""Add runs to the released data: `python docs/add_runs.py MACHINE RUN...`.

curves.csv receives the logged and monitored values, and runs.csv the configuration and the results.
Rows of runs that are already there are replaced, but another run of the same name is refused.
Validations are complete. Other curves have about 24 points and at most five layers of each stack.
MACHINE is the processor's name.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fairseq_deepnet.experiments import results, significance
from fairseq_deepnet.files import whole
from fairseq_deepnet.tools.plotting.runs import Run, read_runs
from fairseq_deepnet.tools.scores import read_score

DOCS = Path(__file__).resolve().parent
POINTS = 24
SETTINGS = ("sweep", "scheme", "variant", "layers", "shape", "lr", "adam-eps", "freeze-norms")
SETTINGS += ("warmup-updates", "tokens", "seed")


def curves(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the rows of curves.csv."""
    for key, (updates, values) in run.series.items():
        if key.quantity in ("loss", "lr"):
            continue
        step = 1 if key.side == "valid" else max(1, len(updates) // POINTS)
        depth = values.shape[1]
        for layer in sorted({1, *(max(1, round(depth * part / 4)) for part in range(1, 5))}):
            points = zip(updates.tolist(), values[:, layer - 1].tolist(), strict=True)
            for update, value in reversed(list(points)[::-1][::step]):
                if not math.isnan(value):
                    yield {
                        **{"run": run.name, "quantity": key.quantity, "of": key.side},
                        **{"part": key.part, "layer": layer if depth > 1 else ""},
                        **{"update": update, "value": f"{value:.6g}"},
                    }


def configuration(run: Run, machine: str) -> dict[str, Any]:
    """Return the row of runs.csv."""
    record = json.loads((run.folder / "environment.json").read_text(encoding="utf-8"))
    measured = results.read_run(run.folder)
    row, options = measured.row(), measured.config.options
    if score := read_score(run.folder, significance.DEFAULT):  # outside a sweep
        row |= {key: row.get(key) or score.values.get(key) for key in ("bleu", "chrf")}
    return row | {
        "run": run.name,
        "scheme": row["scheme_or_arch"],
        "variant": options.get("scheme-variant"),
        "freeze-norms": row["freeze-norms"] or "none",
        "total-num-update": options.get("total-num-update"),
        "revision": record["git"][:7],
        "machine": machine,
    }


def refuse_others(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Exit if the file has a row of another run, with other settings, that has the same name."""
    new = {row["run"]: row for row in rows}
    with file.open(encoding="utf-8", newline="") as lines:
        for old in csv.DictReader(lines):
            row = new.get(old["run"], old)
            if other := [name for name in SETTINGS if old[name] != str(row[name] or "")]:
                sys.exit(f"{file.name} has another run {old['run']} ({other}): rename the folder")


def add(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Append rows to a file, without its old rows of the same runs."""
    names = {row["run"] for row in rows}
    with file.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        columns = list(reader.fieldnames or ())
        rows = [*(row for row in reader if row["run"] not in names), *rows]
    with whole(file) as part, part.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    if len(sys.argv) < 3 or Path(sys.argv[1]).is_dir():
        sys.exit(__doc__)
    machine, *folders = sys.argv[1:]
    runs = read_runs([Path(folder) for folder in folders])
    rows = [configuration(run, machine) for run in runs]
    refuse_others(DOCS / "runs.csv", rows)
    add(DOCS / "curves.csv", [row for run in runs for row in curves(run)])
    add(DOCS / "runs.csv", rows)
