"""Archives of OPUS-100's true layout, with a little text in them."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

TOP = "opus-100-corpus/v1.0"
Text = Mapping[str, Sequence[str]]
"""Lines by language."""


def pair_files(kind: str, split: str, text: Text) -> dict[str, bytes]:
    """Both sides of one split of one pair, by their names in the archive."""
    pair = "-".join(sorted(text))
    return {
        f"{TOP}/{kind}/{pair}/opus.{pair}-{split}.{language}": "".join(
            f"{line}\n" for line in lines
        ).encode()
        for language, lines in text.items()
    }


def write_archive(path: Path, files: Mapping[str, bytes]) -> Path:
    """A .tar.gz of these files, and of the folders that they are in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for folder in sorted({name.rsplit("/", 1)[0] for name in files}):
            entry = tarfile.TarInfo(folder)
            entry.type = tarfile.DIRTYPE
            tar.addfile(entry)
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def generated(languages: Iterable[str], count: int, seed: int) -> dict[str, list[str]]:
    """Sentences of made-up words; the same word in every language but for its ending."""
    generator = random.Random(seed)
    lines = [
        [generator.randrange(300) for _ in range(generator.randint(3, 9))] for _ in range(count)
    ]
    return {
        language: [" ".join(f"w{word}{language}" for word in words) + "." for words in lines]
        for language in languages
    }


def small_corpus(seed: int = 1, train: int = 300) -> dict[str, bytes]:
    """Three pairs with English, cs-en without dev and test, and the zero-shot pair de-fr.

    Sentences are generated; the zero-shot pair has dev text, too, which nobody needs.
    """
    files: dict[str, bytes] = {}
    for number, language in enumerate(("de", "fr", "cs")):
        splits = {"train": train} | ({"dev": 12, "test": 12} if language != "cs" else {})
        for step, (split, count) in enumerate(splits.items()):
            text = generated((language, "en"), count, seed * 100 + number * 10 + step)
            files |= pair_files("supervised", split, text)
    files |= pair_files("zero-shot", "test", generated(("de", "fr"), 12, seed * 100 + 91))
    files |= pair_files("zero-shot", "dev", generated(("de", "fr"), 12, seed * 100 + 92))
    return files
