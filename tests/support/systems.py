"""Scored runs on a made-up test set, with translations that are as good as is wanted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_deepnet.records import sha256
from fairseq_deepnet.tools.evaluation.scoring import score
from tests.support.cells import write_config

_WORDS = [
    *("the", "a", "dog", "man", "woman", "child", "runs", "sees"),
    *("holds", "blue", "red", "old", "small", "ball", "house", "street"),
]
REFERENCES = [
    " ".join(
        _WORDS[(7 * line + 5 * word + word * word) % len(_WORDS)] for word in range(6 + line % 7)
    )
    for line in range(60)
]


def spoilt(every: int, start: int = 0) -> list[str]:
    """The references with one word in `every` lines replaced: the less often the better."""
    lines = [line.split() for line in REFERENCES]
    for number in range(start, len(lines), every):
        lines[number][number % len(lines[number])] = "something"
    return [" ".join(line) for line in lines]


def write_texts(folder: Path, references: Sequence[str] = REFERENCES) -> Path:
    """test.de and test.en in a folder; returns the reference."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "test.de").write_text(
        "".join(f"Satz {n}\n" for n in range(len(references))), encoding="utf-8"
    )
    (folder / "test.en").write_text("".join(f"{line}\n" for line in references), encoding="utf-8")
    return folder / "test.en"


def write_run(
    run: Path,
    reference: Path,
    hypotheses: Sequence[str],
    name: str = "test.checkpoint_best.beam5.lenpen1",
    *,
    tokenizer: str | None = None,
    decoded: Mapping[str, Any] | None = None,
    **options: Any,
) -> Path:
    """A run folder with config and score, as scripts/eval_bleu.sh leaves it; returns the JSON.

    Arguments:
        decoded: of the request: beam, engine, ... where not fairseq with a beam of 5
    """
    write_config(run, **options)
    references = reference.read_text(encoding="utf-8").splitlines()
    record = score(hypotheses, references, tokenizer=tokenizer)
    digests = {path.name: sha256(path) for path in (reference.with_suffix(".de"), reference)}
    asked = {"data": digests, "beam": 5, "lenpen": 1.0, "options": [], **(decoded or {})}
    record |= {"split": "test", "reference": str(reference), **asked, "request": asked}
    (run / "scores").mkdir(exist_ok=True)
    (run / "scores" / f"{name}.txt").write_text(
        "".join(f"{line}\n" for line in hypotheses), encoding="utf-8"
    )
    (run / "scores" / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")
    return run / "scores" / f"{name}.json"
