"""Access to the record, the files and the subwords of a data folder.

A folder contains one language pair, many pairs that share a dictionary and have language tokens,
or text in one language. data/README.md shows the layouts.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_deepnet.records import Keys, fault_of, read_record, refuse_changed
from fairseq_deepnet.tools.corpora import moses
from fairseq_deepnet.tools.corpora.subwords import decode_line, encode_lines, load_model

MULTILINGUAL_TASK = "translation_multi_simple_epoch"
"""fairseq's task for folders of many pairs. The task adds language tokens and samples pairs."""

MONOLINGUAL_TASKS = ("language_modeling", "masked_lm")
"""fairseq's tasks for monolingual folders."""
_KEYS = {"translation": "source", MULTILINGUAL_TASK: "directions"}
_KEYS |= dict.fromkeys(MONOLINGUAL_TASKS, "language")  # task -> key in corpus.json

SPM_HELP = (
    "sentencepiece model of a data folder written by fairseq-preprocess, or none if its"
    " text is already tokenised"
)

_LANGUAGE = re.compile(r"[^\W_][\w.@-]*")
"""Pattern of language codes, as these become part of file names and command lines."""
_REMEDY = "copy it again, or build the folder again"
_load = functools.lru_cache(maxsize=8)(load_model)


class Direction(NamedTuple):
    """A translation direction: source and target language."""

    source: str
    target: str

    @classmethod
    def parse(cls, name: str) -> Direction:
        """Parse a name such as "de-en"; raise ValueError unless it has two different languages."""
        codes = name.split("-")
        if len(codes) != 2 or codes[0] == codes[1] or not all(map(_LANGUAGE.fullmatch, codes)):
            raise ValueError(f"{name!r} is not a direction such as de-en")
        return cls(*codes)

    @property
    def pair(self) -> str:
        """Return the name of the language pair, which is the same for both directions."""
        return "-".join(sorted(self))

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


@dataclasses.dataclass(frozen=True)
class DataFolder:
    """A complete data folder and the record in its corpus.json."""

    path: Path
    record: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> DataFolder:
        """Open a folder and read its record; raise FileNotFoundError if it has none."""
        manifest = path / "corpus.json"
        if not manifest.is_file():
            if not path.is_dir():
                raise FileNotFoundError(f"there is no data folder {path}; set --data (DATA=FOLDER)")
            raise FileNotFoundError(
                f"{path} is not a complete data folder, as it has no corpus.json; set --data FOLDER"
                " (in scripts DATA=FOLDER), or for data written by fairseq-preprocess give its"
                " sentencepiece model: --spm FILE"
            )
        record = read_record(manifest, remedy=_REMEDY)
        required: Keys = {"source": str, "target": str}
        if "directions" in record:
            required = {"directions": dict, "languages": list}
        elif "language" in record:
            required = {"language": str}
        if fault := fault_of(record, required):
            raise ValueError(f"{manifest} is damaged: {fault}; {_REMEDY}")
        folder = cls(path, record)
        for language in folder.languages:
            if not _LANGUAGE.fullmatch(language):
                raise ValueError(f"{manifest}: {language!r} is not a language code such as de")
        return folder

    def refuse_changed(self, names: Iterable[str]) -> None:
        """Raise ValueError if one of these files has changed since preprocessing."""
        refuse_changed(self.path, self.record.get("files"), names, self.path / "corpus.json")

    @property
    def is_multilingual(self) -> bool:
        """Return True if the folder contains many language pairs, with language tokens."""
        return "directions" in self.record

    @property
    def is_monolingual(self) -> bool:
        """Return True if the folder contains text in one language, for language models."""
        return "language" in self.record

    @property
    def languages(self) -> list[str]:
        """Return all languages, in the order of the language tokens if there are many pairs."""
        if self.is_multilingual:
            return list(self.record["languages"])
        if self.is_monolingual:
            return [self.record["language"]]
        return [self.record["source"], self.record["target"]]

    def directions(self, split: str) -> list[Direction]:
        """Return the translation directions of a split, or an empty list if there are none."""
        if self.is_monolingual:
            return []
        if self.is_multilingual:
            return [Direction.parse(name) for name in self.record["directions"].get(split, [])]
        direction = Direction(self.record["source"], self.record["target"])
        exists = split == "train" or self.text(split, direction, direction.target).is_file()
        return [direction] if exists else []

    def text(self, split: str, direction: Direction, language: str) -> Path:
        """Return the path of a direction's raw text in one of its languages."""
        name = f"{split}.{direction.pair}" if self.is_multilingual else split
        return self.path / "text" / f"{name}.{language}"

    @property
    def is_moses(self) -> bool:
        """Return True if the subwords are byte-pair-encoded Moses tokens."""
        return self.record.get("tokenisation") == "moses"

    @property
    def is_lowercase(self) -> bool:
        """Return True if all text is in lower case."""
        return bool(self.record.get("lowercase", False))

    def tokenised(self, split: str, language: str) -> Path:
        """Return the path of a split's Moses tokens in one language."""
        return self.path / "tokenised" / f"{split}.{language}"

    def binarised_source(self, split: str) -> list[Path]:
        """Return the paths of a split's binarised source side (.bin, .idx) in a one-pair folder."""
        source, target = self.languages
        if (self.path / f"{split}.{target}-{source}.{source}.bin").is_file():
            target, source = source, target
        stem = f"{split}.{source}-{target}.{self.languages[0]}"
        return [self.path / f"{stem}.{end}" for end in ("bin", "idx")]

    def subwords(self, split: str) -> list[str]:
        """Return a split's source side as subwords, from a one-pair folder's binarised data."""
        from fairseq.data import Dictionary, data_utils  # loads torch

        words = Dictionary.load(str(self.path / f"dict.{self.languages[0]}.txt"))
        prefix = str(self.binarised_source(split)[0]).removesuffix(".bin")
        return [words.string(line) for line in data_utils.load_indexed_dataset(prefix, words)]

    def subword_model(self, language: str) -> Path:
        """Return the path of a language's sentencepiece model, or of the byte-pair codes."""
        if self.is_moses:
            return self.path / "bpe.codes"
        own = self.path / f"spm.{language}.model"
        return own if own.is_file() else self.path / "spm.model"

    def decode(self, lines: Iterable[str], language: str) -> list[str]:
        """Decode lines of space-separated subwords to text."""
        if self.is_moses:
            return [moses.detokenise(moses.remove_bpe(line), language) for line in lines]
        model = _load(self.subword_model(language))
        return [decode_line(model, line) for line in lines]

    def encode(self, lines: Iterable[str], language: str) -> Iterator[str]:
        """Encode lines of text as space-separated sentencepiece subwords."""
        return encode_lines(_load(self.subword_model(language)), lines, 1)

    def task_options(self, options: Mapping[str, Any] | None = None) -> dict[str, str]:
        """Return the options of fairseq's task for this folder, by name.

        Raises ValueError if fairseq-train's `options` are for other data. If there are many pairs,
        lang-pairs ("de-en,en-de") selects the directions; the default is all.
        """
        options = options or {}
        key = _KEYS.get(str(options.get("task")))
        pair = {options.get(f"{end}-lang", self.record.get(end)) for end in ("source", "target")}
        if (key and key not in self.record) or (key == "source" and pair != {*self.languages}):
            names = [n for n in ("task", "source-lang", "target-lang") if n in options]
            raise ValueError(
                f"{self.path} (languages {', '.join(self.languages)}) is not for"
                f" {', '.join(f'--{n} {options[n]}' for n in names)}: choose another config or DATA"
            )
        if self.is_monolingual:
            return {}
        if not self.is_multilingual:
            return {"source-lang": self.record["source"], "target-lang": self.record["target"]}
        pairs = str(options.get("lang-pairs") or "")
        if Path(pairs).is_file():  # fairseq accepts a file of pairs
            pairs = Path(pairs).read_text(encoding="utf-8").strip()
        chosen = [*map(Direction.parse, filter(None, pairs.split(",")))] or self.directions("train")
        lines = self.record["lines"]["train"]
        missing = [str(direction) for direction in chosen if direction.pair not in lines]
        if missing:
            raise ValueError(f"{self.path} has no training text for {', '.join(missing)}")
        dictionary = str((self.path / "dict.txt").resolve())
        return {
            **dict.fromkeys(("source-dict", "target-dict"), dictionary),
            "lang-dict": str((self.path / "languages.txt").resolve()),
            "lang-pairs": ",".join(map(str, chosen)),
            # otherwise temperature sampling makes an epoch up to 1.5 times as long as the data
            "virtual-data-size": str(sum(lines[direction.pair] for direction in chosen)),
        }


@dataclasses.dataclass(frozen=True)
class BareFolder(DataFolder):
    """A one-pair data folder that was written by fairseq-preprocess and therefore has no record.

    Args:
        spm: sentencepiece model for both languages; None if the text is already tokenised.
    """

    spm: Path | None = None

    def subword_model(self, language: str) -> Path:
        return self.spm or self.path / f"dict.{language}.txt"

    def decode(self, lines: Iterable[str], language: str) -> list[str]:
        return [*lines] if self.spm is None else super().decode(lines, language)

    def encode(self, lines: Iterable[str], language: str) -> Iterator[str]:
        return iter(lines) if self.spm is None else super().encode(lines, language)
