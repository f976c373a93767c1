"""When a training counts as diverged: one rule for sweeps and reports. The paper states none."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet import configs
from fairseq_deepnet.plotting import read_curves

NEAR_UNIFORM: Final = 0.5
"""Bits a token below log2(V) that a model must reach to have learnt anything."""
NO_TRANSLATION: Final = 1.0
"""BLEU below which nothing is translated."""
TAIL: Final = 200
"""Last lines of train.log in which fairseq's own verdict is looked for."""
SPECIAL_SYMBOLS: Final = 4
"""Symbols that fairseq adds to a dictionary file: <s>, <pad>, </s>, <unk>."""

_FAIRSEQ = re.compile(r"FloatingPointError|Minimum loss scale reached")


@dataclass(frozen=True)
class Evidence:
    """What a verdict rests on; None for what is not known.

    Arguments:
        log_tail: last lines of train.log
        train_loss, valid_loss: the last ones logged (base 2, per token)
        updates: the last update in the log
        warmup: updates until the learning rate is at its peak
        vocabulary: symbols of the target side
        bleu: the test set's
    """

    log_tail: tuple[str, ...] = ()
    train_loss: float | None = None
    valid_loss: float | None = None
    updates: int = 0
    warmup: int = 0
    vocabulary: int | None = None
    bleu: float | None = None


def why_diverged(seen: Evidence) -> str | None:
    """The reason why a training has diverged; None where it has not.

    In this order:
    1. fairseq gave up: the last 200 lines of the log hold "FloatingPointError" (gradients that are
       not finite) or "Minimum loss scale reached".
    2. The last training or validation loss is not finite.
    3. The last validation loss (negative log-likelihood, without label smoothing) is not at
       least 0.5 bits a token below log2(V), what a model gives that finds all V symbols of the
       target side equally likely: nothing was learnt, not even how frequent words are.
    4. Test BLEU is below 1.

    Rules 3 and 4 wait for the end of the warm-up: a run that stops before it has not had its
    chance.
    """
    for line in reversed(seen.log_tail):
        found = _FAIRSEQ.search(line)
        if found:
            return f"fairseq gave up: {found[0]}"
    for name, loss in (("training", seen.train_loss), ("validation", seen.valid_loss)):
        if loss is not None and not math.isfinite(loss):
            return f"the last {name} loss is {loss}"
    if seen.updates < max(1, seen.warmup):
        return None
    if seen.valid_loss is not None and seen.vocabulary:
        uniform = math.log2(seen.vocabulary)
        if seen.valid_loss > uniform - NEAR_UNIFORM:
            return (
                f"the last validation loss, {seen.valid_loss:.2f} bits a token, is that of a model "
                f"which has learnt nothing (log2 of {seen.vocabulary:,} symbols is {uniform:.2f})"
            )
    if seen.bleu is not None and seen.bleu < NO_TRANSLATION:
        return f"test BLEU is {seen.bleu:.2f}, below {NO_TRANSLATION:g}"
    return None


def tail(log: Path, lines: int = TAIL) -> tuple[str, ...]:
    """The last lines of a file of any size; empty where it is not there."""
    if not log.is_file():
        return ()
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 1000 * lines))
        text = file.read().decode("utf-8", errors="replace")
    return tuple(text.splitlines()[-lines:])


def gather(run: Path, bleu: float | None = None) -> Evidence:
    """The evidence in a run folder."""
    log = tail(run / "train.log")
    try:
        curves = read_curves(run, "nll_loss")
    except (FileNotFoundError, ValueError):
        return Evidence(log_tail=log, bleu=bleu)
    points = curves.train + curves.valid
    config = configs.load_config(str(run / "config.yaml"))
    return Evidence(
        log_tail=log,
        train_loss=curves.train[-1][1] if curves.train else None,
        valid_loss=curves.valid[-1][1] if curves.valid else None,
        updates=max(update for update, _ in points),
        warmup=int(str(config.options.get("warmup-updates", 0))),
        vocabulary=vocabulary(config),
        bleu=bleu,
    )


def vocabulary(config: configs.Config) -> int | None:
    """Symbols of the target side in a config's data folder; None where that is not there."""
    from fairseq_deepnet.provenance import inside_project

    data = inside_project(str(config.recipe.get("data", "")))
    manifest = data / "corpus.json"
    facts: dict[str, Any] = json.loads(manifest.read_text("utf-8")) if manifest.is_file() else {}
    target = facts.get("target") or config.options.get("target-lang")
    for file in (data / f"dict.{target}.txt", data / "dict.txt"):
        if file.is_file():
            with file.open("rb") as lines:
                return sum(1 for _ in lines) + SPECIAL_SYMBOLS
    return None
