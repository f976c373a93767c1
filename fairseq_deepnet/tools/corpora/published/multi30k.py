"""Multi30k: image captions, the same in German, English, French and Czech."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Final

from fairseq_deepnet.tools.corpora.builder import Row
from fairseq_deepnet.tools.corpora.published import Corpus, DataKind, Fetch, file_at
from fairseq_deepnet.tools.corpora.text import find_side, raw_lines

LANGUAGES: Final = ("de", "en", "fr", "cs")
_LINES: Final = {"train": 29_000, "valid": 1014, "test": 1000}
_PUBLIC: Final = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
"""Lines of the splits, and their names in the repository multi30k/dataset."""
_PLACES: Final = (
    "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw",
    "https://cdn.jsdelivr.net/gh/multi30k/dataset@master/data/task1/raw",
)


def _languages(value: SimpleNamespace) -> Sequence[str]:
    if hasattr(value, "langs"):
        return tuple(value.langs.split())
    return (value.lang_code,) if hasattr(value, "lang_code") else (value.src, value.tgt)


def check(value: SimpleNamespace) -> None:
    """Refuse a language that Multi30k has not, and LANGS of which no pair with English is made."""
    languages = _languages(value)
    whole = len(languages) >= 2 and "en" in languages and len(set(languages)) == len(languages)
    if hasattr(value, "langs") and not whole:
        raise ValueError(
            f"LANGS is {value.langs!r}; two or more languages are needed, each once, en among them,"
            " separated by spaces: cs de en"
        )
    for language in languages:
        if language not in LANGUAGES:
            raise ValueError(
                f"there is no language {language!r} in Multi30k; it has de, en, fr and cs"
            )


def rows(value: SimpleNamespace, fetch: Fetch) -> list[Row]:
    """Return the rows of a pair, of one language or of LANGS, after counting their lines."""
    languages = tuple(_languages(value))
    is_complete = getattr(value, "is_complete", False)
    # of a folder that is complete only the text that is still there is compared
    folder = Path(value.downloads) if is_complete else fetch(languages)
    if not folder.is_dir() and not is_complete:
        raise ValueError(f"RAW={folder} is not a folder; without RAW it is downloaded")
    found = []
    for split, lines in _LINES.items():
        try:
            prefix = _prefix(folder, split, languages[0])
        except FileNotFoundError:
            if not is_complete:
                raise
            prefix = str(folder / split)
        found.append(Row(split, languages, prefix))
        for language in languages:
            try:
                count = sum(1 for _ in raw_lines(find_side(prefix, language)))
            except FileNotFoundError as error:
                if is_complete:
                    continue
                raise FileNotFoundError(
                    f"there is no {prefix}.{language}, plain or .gz; fetch the repository"
                    " multi30k/dataset from GitHub and set RAW=its folder"
                ) from error
            if count != lines:
                raise ValueError(
                    f"{prefix}.{language} has {count} lines instead of {lines}; fetch it again"
                )
    return found


def _prefix(raw: Path, split: str, language: str) -> str:
    """Return the prefix of a split under our name or the public one."""
    for folder in (raw, raw / "data/task1/raw"):
        for name in (split, _PUBLIC[split]):
            if any((folder / f"{name}.{language}{end}").is_file() for end in ("", ".gz")):
                return str(folder / name)
    raise FileNotFoundError(
        f"{raw} has no text of {split}: neither {split}.{language} nor"
        f" {_PUBLIC[split]}.{language}.gz; without RAW it is downloaded"
    )


def pairs(value: SimpleNamespace, fetch: Fetch) -> list[Row]:
    """Return the rows of LANGS: pairs with English are trained, all are tested."""
    splits = rows(value, fetch)
    languages = splits[0].pair
    return [
        row._replace(pair=(one, other))
        for one in languages
        for other in languages
        for row in splits
        if one < other and ("en" in (one, other) or row.split == "test")
    ]


_FILES: Final = tuple(
    file_at(_PLACES, f"{split}.{language}.gz", languages=(language,))
    for split in _PUBLIC.values()
    for language in LANGUAGES
)
CORPORA: Final = {
    "multi30k": Corpus(
        "Multi30k captions in German, English, French and Czech (12 files, 3 MB)",
        _FILES,
        _FILES,
        {
            "multi30k": DataKind(
                "Multi30k, one pair",
                folder="pair",
                rows=rows,
                out="multi30k.{src}-{tgt}",
                defaults={"SRC": "de", "TGT": "en", "VOCAB_SIZE": 4000},
                check=check,
            ),
            "multi30k-lm": DataKind(
                "Multi30k, one language",
                folder="language",
                rows=rows,
                out="multi30k_lm.{lang_code}",
                defaults={"LANG_CODE": "en", "VOCAB_SIZE": 4000},
                check=check,
            ),
            "multi30k-multilingual": DataKind(
                "Multi30k, several languages",
                folder="pairs",
                rows=pairs,
                out="multi30k_multilingual",
                defaults={"LANGS": "cs de en fr", "VOCAB_SIZE": 8000, "TEMPERATURE": 1.0},
                options="RAW DOWNLOADS JOBS LANGS",
                check=check,
            ),
        },
    )
}
