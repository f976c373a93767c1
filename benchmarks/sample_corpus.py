"""Sentence pairs of the sample corpus (data/sample), for benchmarks that need text."""

import tarfile
from itertools import islice
from pathlib import Path

ARCHIVE = Path(__file__).resolve().parents[1] / "data" / "sample" / "sample.tar.bz2"


def sample_pairs(split: str, count: int) -> list[tuple[str, str]]:
    """Return the first `count` (German, English) pairs of train, valid or test."""
    sides = []
    with tarfile.open(ARCHIVE) as archive:
        for language in ("de", "en"):
            member = archive.extractfile(f"{split}.{language}")
            assert member is not None
            sides.append([line.decode().rstrip("\n") for line in islice(member, count)])
    if len(sides[0]) < count:
        raise SystemExit(f"the sample corpus has {len(sides[0]):,} pairs in {split}, not {count:,}")
    return list(zip(*sides, strict=True))


def write_sample(folder: Path, **counts: int) -> None:
    """Write the first pairs of each split to folder/SPLIT.de and folder/SPLIT.en."""
    folder.mkdir(parents=True)
    for split, count in counts.items():
        pairs = sample_pairs(split, count)
        for side, language in enumerate(("de", "en")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
