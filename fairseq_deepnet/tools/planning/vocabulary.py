"""How many entries the dictionaries of a data folder have."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fairseq_deepnet.files import shown
from fairseq_deepnet.tools.configs import Config
from fairseq_deepnet.tools.corpora.folder import DataFolder

_SPECIAL_SYMBOLS: Final = 4
"""fairseq's <s>, <pad>, </s> and <unk>, which stand in no dictionary file."""


def from_folder(path: Path) -> tuple[int, int]:
    """Count the entries of the source's and the target's dictionary, special symbols included.

    A folder of many languages has one dictionary, to which fairseq adds a token a language.
    Raises FileNotFoundError for a folder that is not complete.
    """
    folder = DataFolder.open(path)
    if folder.is_multilingual:
        entries = entries_of(path / "dict.txt") + len(folder.languages)
        return entries, entries
    if folder.is_monolingual:
        entries = entries_of(path / "dict.txt")
        return entries, entries
    source, target = (entries_of(path / f"dict.{name}.txt") for name in folder.languages)
    return source, target


def of_recipe(config: Config, folder: Path | None) -> tuple[tuple[int, int], str]:
    """Return the entries of both dictionaries, and where the numbers come from.

    Where the data folder is not there yet, the config says what it will have; else ValueError.
    """
    if folder is not None and (folder / "corpus.json").is_file():
        return from_folder(folder), f"of {shown(folder)}"
    if "vocabulary" in config.recipe:
        return parse(str(config.recipe["vocabulary"])), "of the config, without data yet"
    raise ValueError("how many entries has the dictionary? give --vocabulary N or --data FOLDER")


def parse(text: str) -> tuple[int, int]:
    """Return the sizes of both dictionaries from "32000" or "8000,6000" (source, target)."""
    parts = text.replace("_", "").split(",")
    if len(parts) > 2 or not all(part.strip().isdecimal() for part in parts):
        raise ValueError(
            f"--vocabulary {text}: a number of entries is expected, or two: SOURCE,TARGET"
        )
    sizes = [int(part) for part in parts]
    return sizes[0], sizes[-1]


def entries_of(dictionary: Path) -> int:
    """Count the entries of a dictionary file of fairseq's, special symbols included."""
    with dictionary.open("rb") as file:
        return sum(1 for line in file if line.strip()) + _SPECIAL_SYMBOLS
