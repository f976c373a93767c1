"""Scores in run folders. The name of a score describes how the text was translated.

The score of a language pair is stored in NAME.json, and its hypotheses in NAME.txt. Scores for
several directions are stored in a folder NAME, with two such files for each direction and the
averages in summary.json.
"""

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.files import shown
from fairseq_deepnet.records import read_record, short_digest
from fairseq_deepnet.tools.evaluation.scoring import METRICS, TOKENISED

SUMMARY: Final = "summary.json"
OTHER_TEXT: Final = "text."
"""Prefix of the names of scores on text from outside the data folder (--text)."""
VALUES: Final = (*METRICS, TOKENISED, "x-en", "en-x", "average", "zero-shot")
"""Keys of numbers in the record of a score, whether of one language pair or of many directions."""


@dataclass(frozen=True)
class Score:
    """A score written by `deepnet evaluate`.

    Args:
        file: path relative to the run folder; names a folder if there are several directions.
        values: the scores as numbers, under the keys listed in VALUES.
        signatures: sacreBLEU's signature for each metric.
        facts: all entries of the JSON file.
    """

    file: str
    values: dict[str, float]
    signatures: dict[str, str]
    facts: dict[str, Any]

    @property
    def name(self) -> str:
        """The score's name, such as test.checkpoint_best.beam5.lenpen1."""
        return Path(self.file).name.removesuffix(".json")

    @property
    def of(self) -> str:
        """Description of the text: a split of the data, or other text, and the files' digest."""
        split = self.facts["split"]
        record = self.facts if "directions" in self.facts else self.facts.get("request", {})
        # scores of earlier versions may have no digests
        digest = f" (text {short_digest(''.join(record['texts']))})" if "texts" in record else ""
        if self.name.startswith(OTHER_TEXT):
            place = self.name.removeprefix(OTHER_TEXT).partition(f".{split}.")[0]
            return f"{split} text of the folder {place}{digest}"
        return f"{split} set{digest}"

    @property
    def headline(self) -> float:
        """sacreBLEU's BLEU, or its mean over the trained directions, or else the zero-shot ones."""
        return next(self.values[k] for k in ("average", "bleu", "zero-shot") if k in self.values)

    def how(self, updates: int = 0) -> str:
        """Describe the text, the decoding and the updates, by default `updates`."""
        facts = self.facts
        how = f"{self.of}, {int(facts.get('lines') or 0):,} sentences"
        if "directions" in facts:
            of = f" of {facts['expected']}" if facts.get("missing") else ""
            how += f" in {facts['directions']}{of} directions{of and ', INCOMPLETE'}"
            how += " (BLEU: mean over the trained ones, if any)"
        return f"{how}, {decoding(facts)}, {int(facts.get('updates') or updates):,} updates"


def score_name(words: Sequence[str], text: Path | None = None) -> str:
    """Return the name of a score, which describes how the text was translated.

    Args:
        words: split, checkpoint, and settings; empty strings are skipped.
        text: folder with text from outside the data folder; a digest of its path becomes part of
            the name, to distinguish folders with equal names.
    """
    name = ".".join(filter(None, words))
    if text is None:
        return name
    return f"{OTHER_TEXT}{text.resolve().name}-{short_digest(shown(text))}.{name}"


def option_words(options: Sequence[str]) -> str:
    """Return fairseq-generate's options as a part of file names, such as max-len-b10.

    Options that are too long or contain unusual characters are replaced with a digest.
    """
    name = "".join(options).replace("=", "").replace("--", ".").removeprefix(".")
    if re.fullmatch(r"[\w.,+-]{0,80}", name):
        return name
    return f"options-{short_digest(name)}"


def decoding(facts: Mapping[str, Any]) -> str:
    """Describe how text was translated: beam search, other options and averaged checkpoints."""
    parts = [f"beam {facts.get('beam')}, lenpen {facts.get('lenpen')}"]
    parts.append(" ".join((facts.get("request") or {}).get("options") or ()))
    averaged = facts.get("averaged")
    parts.append(f"average of {len(averaged)} checkpoints" if averaged else "")
    return ", ".join(filter(None, parts))


def read_scores(run: Path) -> list[Score]:
    """Read all scores in a run folder, sorted by name; skip unreadable files."""
    scores = []
    for path in sorted((run / "scores").glob("*.*")):
        with contextlib.suppress(OSError, ValueError):
            score = _read(path, run)
            scores += [score] if score else []
    return scores


def read_score(run: Path, name: str) -> Score | None:
    """Read the score at a path in a run, with or without .json; return None if there is none."""
    path = run / name
    return _read(path, run) or _read(path.with_name(f"{path.name}.json"), run)


def _read(path: Path, run: Path) -> Score | None:
    """Read the score in a file or folder; return None for anything else."""
    file = path / SUMMARY if path.is_dir() else path
    if file.suffix != ".json" or not file.is_file():
        return None
    facts = read_record(file, remedy="remove it and score again")
    values = {key: float(facts[key]) for key in VALUES if facts.get(key) is not None}
    signed = [key for key in (*METRICS, TOKENISED) if f"{key}_signature" in facts]
    signatures = {key: str(facts[f"{key}_signature"]) for key in signed}
    return Score(str(path.relative_to(run)), values, signatures, facts) if values else None
