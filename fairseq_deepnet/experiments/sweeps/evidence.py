"""What a run folder tells of how its training went: the evidence that `why_diverged` judges."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fairseq_deepnet.divergence.verdict import Evidence
from fairseq_deepnet.records import read_record
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.corpora.unigram import unigram_nll
from fairseq_deepnet.tools.planning.vocabulary import entries_of
from fairseq_deepnet.tools.plotting.curves import Curves, read_curves

TAIL: Final = 200
"""Last lines of train.log in which fairseq's own verdict is looked for."""
START: Final = "| fairseq_cli.train | {'_name'"
"""In the first line of each training in a log: its configuration."""


def tail(log: Path, lines: int = TAIL) -> tuple[str, ...]:
    """The last lines of a log of any size, of its last training; empty where it is not there."""
    if not log.is_file():
        return ()
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 1000 * lines))
        text = file.read().decode("utf-8", errors="replace")
    last = text.splitlines()[-lines:]
    starts = [number for number, line in enumerate(last) if START in line]
    return tuple(last[starts[-1] :] if starts else last)


def nll_curves(run: Path) -> Curves | None:
    """Negative log-likelihoods of a run; its loss, where a criterion logs nothing else.

    None for a run that has logged neither.
    """
    for metric in ("nll_loss", "loss"):
        try:
            return read_curves(run, metric)
        except (FileNotFoundError, ValueError):
            continue
    return None


def gather(run: Path) -> Evidence:
    """The evidence in a run folder, and in the data folder that its config names."""
    log = tail(run / "train.log")
    curves = nll_curves(run)
    if curves is None:
        return Evidence(log_tail=log)
    config = configs.load_config(str(run / "config.yaml"))
    return Evidence(
        log_tail=log,
        train=tuple(curves.train),
        valid=tuple(curves.valid),
        warmup=int(str(config.options.get("warmup-updates", 0))),
        vocabulary=vocabulary(config),
        unigram=unigram_level(config),
    )


def vocabulary(config: configs.Config) -> int | None:
    """Symbols of the target side in a config's data folder; None where that is not there."""
    data = _data_folder(config)
    for file in (data / f"dict.{_target(config, data)}.txt", data / "dict.txt"):
        if file.is_file():
            return entries_of(file)
    return None


def unigram_level(config: configs.Config) -> float | None:
    """Bits a token of a unigram model on a config's data; None where it cannot be told."""
    data = _data_folder(config)
    symbols = vocabulary(config)
    return None if symbols is None else unigram_nll(data.resolve(), _target(config, data), symbols)


def _data_folder(config: configs.Config) -> Path:
    from fairseq_deepnet.files import inside_project

    return inside_project(str(config.recipe.get("data", "")))


def _target(config: configs.Config, data: Path) -> str | None:
    """The language that is predicted; None in a folder of one language, or of many directions."""
    manifest = data / "corpus.json"
    facts = read_record(manifest) if manifest.is_file() else {}
    told = config.options.get("target-lang") or facts.get("target")
    return None if told is None else str(told)
