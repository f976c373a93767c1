"""Numbers in README and docs agree with the released data that docs/sources.yaml names."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest
import yaml

from fairseq_deepnet.experiments import paper

DOCS = Path(__file__).resolve().parents[2] / "docs"
SOURCES = yaml.safe_load((DOCS / "sources.yaml").read_text(encoding="utf-8"))
FITS = SOURCES.pop("fits")
PLACES = [(page, place) for page, places in SOURCES.items() for place in places]
PAGES = {page: (DOCS.parent / page).read_text("utf-8").replace("*", "") for page in SOURCES}
DECIMAL, NUMBER = r"[-+]?\d+\.\d+", r"[-+]?\d+(?:\.\d+)?(?:e-\d+)?"


def read(name: str) -> list[dict[str, str]]:
    with (DOCS / f"{name}.csv").open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def table(page: str, header: str) -> list[list[str]]:
    """Return the cells of the body of the table whose header contains the given text."""
    body = rf"^(?=\|).*{re.escape(header)}.*\n\|[-:| ]+\n((?:\|.*\n?)+)"
    bodies = re.findall(body, PAGES[page], re.MULTILINE)
    assert len(bodies) == 1, f"docs/sources.yaml: {page} has {len(bodies)} tables {header}"
    return [line.split("|")[1:-1] for line in bodies[0].splitlines()]


def released() -> dict[str, float]:
    """Return the released numbers and means of them under their names in sources.yaml."""
    data, runs = {}, {row["run"]: row for row in read("runs")}
    for run in runs:
        seeds = [runs[name] for name in (run, f"{run}.seed2", f"{run}.seed3") if name in runs]
        for name, column in (("nll", "valid_nll"), ("bleu", "bleu"), ("chrf", "chrf")):
            results = [float(seed[column]) for seed in seeds if seed[column]]
            data |= {f"{run}*{n}:{name}": fmean(results[:n]) for n in range(2, len(results) + 1)}
            data |= {f"{run}:{name}": result for result in results[:1]}
    for row in read("curves"):
        measured = f":{row['quantity']}/{row['of']}/{row['layer']}"
        name = "" if measured == ":nll_loss/valid/" else measured
        data[f"{row['run']}{name}@{row['update']}"] = float(row["value"])
    data |= {f"{row['row']}/{row['column']}": float(row["ours"]) for row in read("compare_methods")}
    page = "docs/reports/methods.md"
    data["compare_methods:largest-change"] = max(
        abs(float(re.findall(DECIMAL, cell)[0]) - data[f"{row[0].strip()}/{depth}"])
        for row in table(page, next(place for place in SOURCES[page] if "group" in place))
        for depth, cell in zip((6, 18, 50), row[2:5], strict=True)
    )
    for file in (DOCS / "analysis").glob("*.csv"):
        for row in read(f"analysis/{file.stem}"):
            point = f"{row['panel']}/{row['line']}/{row['x']}"
            data |= {f"{point}/{who}": float(row[who]) for who in ("ours", "paper") if row[who]}
    for name in ("table2", "fig6", "fig8"):
        for line, numbers in paper.table(name).rows.items():
            data |= {f"{name}/{line}/{column}": float(number) for column, number in numbers.items()}
    return data | tatoeba()


def tatoeba() -> dict[str, float]:
    """Return means over directions with 12 and with 48 layers, and their differences."""
    data: dict[str, float] = {}
    rows = {n: [row for row in read("tatoeba") if row["depth"] == n] for n in ("12", "48")}
    sides = {"x-en": ("target", "en"), "en-x": ("source", "en"), "all": ("zero_shot", "False")}
    for depth, (metric, unit), (name, (side, cell)) in itertools.product(
        rows, {"bleu": 1, "chrf": 1, "off_target": 100}.items(), sides.items()
    ):
        values = [row[metric] for row in rows[depth] if row[side] == cell and row[metric]]
        data[f"tatoeba/{depth}/{name}:{metric}"] = unit * fmean(map(float, values))
        data[f"tatoeba/{depth}/{name}:{metric}_directions"] = len(values)
    for metric in ("bleu", "chrf"):
        gains = [float(b[metric]) - float(a[metric]) for a, b in zip(*rows.values(), strict=True)]
        data[f"tatoeba:{metric}_higher"] = sum(gain > 0 for gain in gains)
        data[f"tatoeba:{metric}_error"] = stdev(gains) / len(gains) ** 0.5
    lines = [int(row["lines"]) for row in rows["12"]]
    data["tatoeba:short"] = sum(number < 40 for number in lines)
    return data | {"tatoeba:shortest": min(lines), "tatoeba:longest": max(lines)}


def expand(text: str) -> list[str]:
    """Split a text into names, with braces expanded as in bash."""
    while match := re.search(r"(\S*?){(.*?)}(\S*)", text):
        names = " ".join(f"{match[1]}{part}{match[3]}" for part in match[2].split(","))
        text = f"{text[: match.start()]}{names}{text[match.end() :]}"
    return text.split()


def value(name: str) -> float:
    """Return the value of a name, of a difference A--B or of a ratio A//B."""
    first, sign, second = re.fullmatch(r"(.*?)(?:(--|//)(.*))?", name).groups()
    if sign == "--":
        return DATA[first] - DATA[second]
    return DATA[first] / (DATA[second] if sign else 1)


def law(name: str, x: Sequence[float], y: str, power: bool = False) -> dict[str, float]:
    """Fit y = slope log x + intercept, or log y; also return the slope's error and residuals."""
    logs, numbers = np.log(x), np.array([value(source) for source in expand(y)])
    numbers = np.log(numbers) if power else numbers
    slope, intercept = np.polyfit(logs, numbers, 1)
    residuals = numbers - slope * logs - intercept
    error = np.sqrt((residuals**2).sum() / (len(x) - 2) / ((logs - logs.mean()) ** 2).sum())
    results = {"slope": slope, "intercept": intercept, "error": error, **dict(enumerate(residuals))}
    return {f"{name}:{key}": float(result) for key, result in results.items()}


DATA = released()
for fit in FITS:
    DATA |= law(fit, **FITS[fit])


@pytest.mark.parametrize(("page", "place"), PLACES)
def test_printed_numbers_follow_from_the_released_data(page: str, place: str) -> None:
    names = expand(SOURCES[page][place])
    if place.startswith("|"):
        labels, pattern = (2, NUMBER) if page.endswith("figures.md") else (0, DECIMAL)
        cells = "|".join(cell for row in table(page, place) for cell in row[labels:])
        numbers = re.findall(pattern, cells)
    else:  # a sentence, in which # stands for a number
        pattern = re.escape(place).replace(r"\ ", r"\s+").replace(r"\#", f"({NUMBER})")
        match = re.search(pattern, PAGES[page])
        assert match, f"docs/sources.yaml: {page} does not contain: {place}"
        numbers = list(match.groups())
    if names[0] == "...":
        numbers, names = numbers[1 - len(names) :], names[1:]
    assert len(numbers) == len(names), numbers
    for number, name in zip(numbers, names, strict=True):
        if name != "-":  # no data
            digits, _, exponent = number.partition("e")
            unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
            expected = pytest.approx(value(name), abs=unit / 2 * (1 + 1e-6), rel=1e-5)
            assert float(number) == expected, name


def test_depth_csv_has_the_means_and_deviations_of_its_runs() -> None:
    runs = {row["run"]: row for row in read("runs")}
    for row in (row for row in read("depth") if row["ours"]):
        results = [float(runs[run][row["measure"]]) for run in row["runs"].split()]
        expected = [fmean(results), stdev(results) if len(results) > 1 else 0]
        numbers = [float(row["ours"]), float(row["deviation"] or 0)]
        assert numbers == pytest.approx(expected, abs=1e-4), row
