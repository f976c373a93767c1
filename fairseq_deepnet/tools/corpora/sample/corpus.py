"""The sample corpus: random sentence pairs, dealt to train, valid and test.

A combination is an adjective with a noun, a verb with its object, the two parts of a compound, or a
number with a noun. A hash of it says whether train may hold it: 1 in 20 is kept for valid, 1 in 20
for test. So every test sentence puts together words that the model has never seen together.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from fairseq_deepnet.tools.corpora.sample.main_clauses import Pair
from fairseq_deepnet.tools.corpora.sample.sentences import SentenceSampler

SPLITS = ("train", "valid", "test")
_SHARE = 20  # one combination in this many is held out, for valid and for test each
_PATIENCE = 200  # sentences drawn for each one asked for, before the grammar counts as exhausted


def split_of_combination(combination: str) -> str:
    """The split that a combination of words belongs to; the same for every seed and machine."""
    bucket = int.from_bytes(hashlib.sha256(combination.encode()).digest()[:4], "big") % _SHARE
    return {0: "valid", 1: "test"}.get(bucket, "train")


def split_of(pair: Pair) -> str | None:
    """The split that may hold a sentence, by its combinations; None if they disagree."""
    held_out = {split_of_combination(c) for c in pair.combinations} - {"train"}
    if len(held_out) > 1:
        return None
    return held_out.pop() if held_out else "train"


def generate(seed: int, sizes: dict[str, int]) -> dict[str, list[Pair]]:
    """Draw so many sentence pairs a split. No German sentence occurs twice.

    Raises ValueError for a size below 1, and for more sentences than the grammar has.
    """
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"--{name} {size}: give at least 1 sentence")
    sampler = SentenceSampler(seed)
    corpus: dict[str, list[Pair]] = {split: [] for split in sizes}
    seen: set[str] = set()
    for _ in range(_PATIENCE * sum(sizes.values())):
        pair = sampler.pair()
        split = split_of(pair)
        if split is None or len(corpus[split]) == sizes[split] or pair.german in seen:
            continue
        seen.add(pair.german)
        corpus[split].append(pair)
        if all(len(corpus[s]) == size for s, size in sizes.items()):
            return corpus
    found = ", ".join(f"{len(pairs)} of {split}" for split, pairs in corpus.items())
    raise ValueError(f"the grammar ran out of new sentences ({found}); ask for fewer")


def write(corpus: dict[str, list[Pair]], folder: Path) -> None:
    """Write SPLIT.de and SPLIT.en, a sentence a line, into a folder that appears when complete.

    Raises ValueError if the folder holds something already.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists and is not an empty folder; remove it or choose another")
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for split, pairs in corpus.items():
            for language, lines in (
                ("de", [p.german for p in pairs]),
                ("en", [p.english for p in pairs]),
            ):
                text = "".join(line + "\n" for line in lines)
                (unfinished / f"{split}.{language}").write_text(
                    text, encoding="utf-8", newline="\n"
                )
        unfinished.chmod(0o755)
        unfinished.replace(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
