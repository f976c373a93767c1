"""Raw text to what fairseq-train reads: the logic and the defaults of scripts/preprocess*.sh.

Each kind of folder takes options that bear the names of the scripts' variables: VOCAB_SIZE is
--vocab-size. With --variables, what no option says is taken from the environment.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from fairseq_deepnet.files import ROOT, say
from fairseq_deepnet.tools.corpora import download
from fairseq_deepnet.tools.corpora.builder import Blueprint, Row, build, rows_of
from fairseq_deepnet.tools.corpora.clean import Limits
from fairseq_deepnet.tools.corpora.extract import MARK
from fairseq_deepnet.tools.corpora.moses import Tokenisation
from fairseq_deepnet.tools.corpora.moses_folder import MosesPair
from fairseq_deepnet.tools.corpora.published import DataKind, Fetch, catalogue
from fairseq_deepnet.tools.corpora.subwords import SubwordOptions
from fairseq_deepnet.tools.corpora.text_folders import ManyPairs, OneLanguage, OnePair, read_table
from fairseq_deepnet.tools.devices import all_cores

OPTIONS: Final[dict[str, tuple[Any, str]]] = {
    "SRC": ("", "source language, the files' ending"),
    "TGT": ("", "target language, the files' ending"),
    "LANG_CODE": ("", "language, the files' ending"),
    "TRAIN": ("", "prefix of PREFIX.LANGUAGE[.gz]"),
    "VALID": ("", "the same"),
    "TEST": ("", "the same; several between commas: test, test1, ..."),
    "TABLE": ("", "of pairs: split, source, target, prefix; between tabs"),
    "OUT": ("", "data folder to make"),
    "WORKERS": (0, "processes (all cores)"),
    "FORCE": (False, "make it again even if it is there"),
    "VOCAB_SIZE": (8000, "number of subwords"),
    "SUBWORDS": ("bpe", "bpe or unigram"),
    "JOINT": (True, "1: one model for both languages, 0: one each"),
    "CHARACTER_COVERAGE": (1.0, "share of characters in the vocabulary"),
    "BYTE_FALLBACK": (False, "spell unseen characters as bytes"),
    "SAMPLE": (2_000_000, "lines that subwords are learnt on, at most"),
    "TEMPERATURE": (5.0, "of that sample; 1: as the text is"),
    "MIN_WORDS": (1, "training text below is dropped"),
    "MAX_WORDS": (250, "training text above is dropped"),
    "MAX_RATIO": (5.0, "training pairs above are dropped"),
    "DROP_DUPLICATES": (False, "drop repeated training text"),
    "HOLD_OUT": (0, "every such training pair is for validation"),
    "MERGES": (10_000, "number of byte-pair codes"),
    "JOINED": (False, "1: one dictionary for both languages"),
    "LOWERCASE": (False, "lower case"),
    "AGGRESSIVE": (False, "split words at hyphens"),
    "PUNCTUATION": (False, "normalise punctuation in train"),
    "APOSTROPHES": (False, "make ’ a plain apostrophe in valid and test"),
    "CLEAN_ON": ("words", "words or subwords: what the limits count"),
    "MIN_TOKENS": (1, "pairs below are dropped"),
    "MAX_TOKENS": (175, "pairs above are dropped"),
    "TRAIN_LINES": (0, "sentence pairs, the first so many (all)"),
    "VALID_LINES": (0, "the same"),
    "TEST_LINES": (0, "the same"),
    "RAW": ("", "archive or folder with the text (none: download)"),
    "DOWNLOADS": ("", "folder for what is downloaded"),
    "JOBS": (4, "files to download at a time"),
    "LANGS": ("", "languages, between spaces"),
    "UNPACKED": ("", "folder for what is unpacked"),
    "OVERLAP": (True, "1: count test text in training text"),
}
"""Default and help of every variable; "" and 0 for those that have no default."""
_PATTERNS: Final[dict[type, tuple[str, str, Callable[[str], Any]]]] = {
    bool: ("[01]", "0 or 1", lambda text: text == "1"),
    int: ("[1-9][0-9]{0,8}", "a whole number above 0", int),
    float: (r"[0-9]+(\.[0-9]+)?", "a number", float),
    str: ("(?s).*", "text", str),
}
"""What the text of a variable must be, by the type of its default."""
_LANGUAGE: Final = ("[A-Za-z][A-Za-z0-9_]*", "a language code such as de", str)
_OWN_PATTERNS: Final[dict[str, tuple[str, str, Callable[[str], Any]]]] = {
    **dict.fromkeys(("SRC", "TGT", "LANG_CODE"), _LANGUAGE),
    "SUBWORDS": ("bpe|unigram", "bpe or unigram", str),
    "CLEAN_ON": ("words|subwords", "words or subwords", str),
    "HOLD_OUT": ("0|[2-9]|[1-9][0-9]{1,8}", "0, or 2 and more", int),
}
_MACHINE: Final = ("OUT", "WORKERS", "FORCE", "RAW", "DOWNLOADS", "JOBS", "UNPACKED")
"""Variables that may be set for several kinds of folder at once."""
_DICTIONARIES: Final = (
    *("--thresholdsrc", "--thresholdtgt", "--nwordssrc", "--nwordstgt", "--padding-factor"),
)
"""Options of fairseq-preprocess, which are given after --."""


class Given:
    """What a user has given: text by the names of variables, and words after --."""

    def __init__(self, texts: Mapping[str, str], words: Sequence[str], by_variable: bool) -> None:
        self.texts = {name: text for name, text in texts.items() if text}
        self.words = list(words)
        self._by_variable = by_variable

    def shown(self, name: str) -> str:
        """Return the name that the user has for a variable."""
        return name if self._by_variable else _flag(name)

    def read(self, names: str, defaults: Mapping[str, Any], required: str) -> SimpleNamespace:
        """Return values by the variables' names in small letters.

        Raises ValueError for the first that is missing or cannot be.
        """
        for name in required.split():
            if not (self.texts.get(name) or defaults.get(name)):
                raise ValueError(f"{self.shown(name)} is not set; see --help")
        values = {}
        for name in names.split():
            value = defaults.get(name, OPTIONS[name][0])
            text = self.texts.get(name)
            if text is not None:
                pattern, what, kind = _OWN_PATTERNS.get(name, _PATTERNS[type(value)])
                if not re.fullmatch(pattern, text):
                    raise ValueError(f"{self.shown(name)} is {text!r}; it must be {what}")
                value = kind(text)
            values[name.lower()] = value
        if values.get("src") and values["src"] == values["tgt"]:
            both = f"{self.shown('SRC')} and {self.shown('TGT')}"
            raise ValueError(f"{both} are both {values['src']!r}; they must differ")
        values["workers"] = values["workers"] or all_cores()
        return SimpleNamespace(**values, fairseq_options=" ".join(self.words))

    def dictionaries(self) -> dict[str, int]:
        """Return fairseq-preprocess' options for dictionaries; ValueError for any others."""
        found = {}
        words = iter(self.words)
        for word in words:
            flag, equals, value = word.partition("=")
            if flag not in _DICTIONARIES:
                known = ", ".join(_DICTIONARIES)
                raise ValueError(
                    f"{word} is set by this script or means nothing to it; see --help for its"
                    f" variables, and of fairseq-preprocess' options take {known}"
                )
            text = value if equals else next(words, "")
            if not re.fullmatch("-?[0-9]+", text):
                raise ValueError(f"{flag} is {text!r}; it must be a whole number")
            found[flag.removeprefix("--").replace("-", "_")] = int(text)
        return found


def _flag(name: str) -> str:
    return f"--{name.lower().replace('_', '-')}"


Rows = Sequence[Row]


def _sentencepiece(value: SimpleNamespace) -> dict[str, Any]:
    names = ("subwords", "vocab_size", "character_coverage", "byte_fallback", "sample")
    ratio = getattr(value, "max_ratio", Limits.max_ratio)
    limits = Limits(value.min_words, value.max_words, ratio, value.drop_duplicates)
    options = SubwordOptions(*(getattr(value, name) for name in names))
    return {"options": options, "limits": limits, "workers": value.workers}


def _pair(value: SimpleNamespace, given: Given) -> Callable[[Rows], Blueprint]:
    common = _sentencepiece(value)
    common |= {"joint": value.joint, "fairseq_options": value.fairseq_options}
    common |= {"hold_out": getattr(value, "hold_out", 0)}
    return lambda rows: OnePair(rows, **common)


def _language(value: SimpleNamespace, given: Given) -> Callable[[Rows], Blueprint]:
    common = _sentencepiece(value)
    return lambda rows: OneLanguage(rows, **common)


def _pairs(value: SimpleNamespace, given: Given) -> Callable[[Rows], Blueprint]:
    if "TABLE" in given.texts and not Path(value.table).is_file():
        raise ValueError(f"{given.shown('TABLE')}={value.table} is not a file")
    common = _sentencepiece(value)
    return lambda rows: ManyPairs(rows, **common, temperature=value.temperature)


def _moses(value: SimpleNamespace, given: Given) -> Callable[[Rows], Blueprint]:
    valid, hold_out = given.shown("VALID"), given.shown("HOLD_OUT")
    has_valid = bool(getattr(value, "valid", ""))
    if has_valid and value.hold_out:
        raise ValueError(f"both {valid} and {hold_out} are set; choose one")
    if hasattr(value, "valid") and not has_valid and not value.hold_out:
        raise ValueError(f"set {valid}=PREFIX, or {hold_out}=N to take every Nth training pair")
    limits = Limits(value.min_tokens, value.max_tokens, value.max_ratio)
    how = Tokenisation(value.lowercase, value.aggressive, value.punctuation, value.apostrophes)
    names = ("merges", "joined", "hold_out", "clean_on", "fairseq_options", "workers")
    same = {name: getattr(value, name) for name in names}
    dictionaries = given.dictionaries()  # before anything is fetched
    return lambda rows: MosesPair(rows, how, limits, dictionaries=dictionaries, **same)


class Folder(NamedTuple):
    """How text becomes data: names of variables, and what checks them and makes a blueprint."""

    options: str
    blueprint: Callable[[SimpleNamespace, Given], Callable[[Rows], Blueprint]]
    defaults: Mapping[str, Any] = {}
    takes_words: bool = False


_TEXT: Final = (
    "OUT WORKERS FORCE VOCAB_SIZE SUBWORDS CHARACTER_COVERAGE BYTE_FALLBACK SAMPLE "
    "MIN_WORDS MAX_WORDS DROP_DUPLICATES "
)
_MOSES: Final = (
    "SRC TGT OUT WORKERS FORCE HOLD_OUT MERGES JOINED LOWERCASE AGGRESSIVE PUNCTUATION APOSTROPHES "
    "CLEAN_ON MIN_TOKENS MAX_TOKENS MAX_RATIO"
)
FOLDERS: Final = {
    "pair": Folder("SRC TGT " + _TEXT + "MAX_RATIO JOINT", _pair),
    "pairs": Folder(_TEXT + "MAX_RATIO TEMPERATURE", _pairs),
    "language": Folder("LANG_CODE " + _TEXT, _language, {"MAX_WORDS": 1000}),  # or paragraphs
    "moses": Folder(_MOSES, _moses, {"MAX_RATIO": 1.5}, takes_words=True),  # raw words differ more
}


def _own_rows(value: SimpleNamespace, fetch: Fetch) -> list[Row]:
    pair = (value.lang_code,) if hasattr(value, "lang_code") else (value.src, value.tgt)
    return rows_of(pair, value.train, value.valid, value.test)


def _own(text: str, folder: str, out: str, required: str) -> DataKind:
    return DataKind(text, folder, _own_rows, out, options="TRAIN VALID TEST", required=required)


KINDS: Final[dict[str, DataKind]] = {
    "pair": _own(
        "one language pair, sentencepiece", "pair", "corpus.{src}-{tgt}", "SRC TGT TRAIN VALID"
    ),
    "pairs": DataKind(
        "many pairs with language tokens, from a table",
        folder="pairs",
        rows=lambda value, fetch: read_table(Path(value.table)),
        defaults={"CHARACTER_COVERAGE": 0.9995, "VOCAB_SIZE": 32_000},
        options="TABLE",
        required="TABLE OUT",
    ),
    "language": _own(
        "one language, for language models",
        "language",
        "corpus_lm.{lang_code}",
        "LANG_CODE TRAIN VALID",
    ),
    "moses": _own(
        "one pair, Moses tokens and byte-pair codes",
        "moses",
        "corpus.tokenized.{src}-{tgt}",
        "SRC TGT TRAIN",
    ),
    **{name: kind for corpus in catalogue().values() for name, kind in corpus.kinds.items()},
}
_CORPUS_OF: Final = {kind: name for name, corpus in catalogue().items() for kind in corpus.kinds}


def read(name: str, given: Given) -> SimpleNamespace:
    """Return the values of a kind of folder; ValueError for those that cannot be."""
    kind = KINDS[name]
    folder = FOLDERS[kind.folder]
    return given.read(
        f"{kind.options} {folder.options}", {**folder.defaults, **kind.defaults}, kind.required
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `deepnet preprocess`."""
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    kinds = parser.add_subparsers(required=True, metavar="KIND", dest="kind")
    for name, kind in KINDS.items():
        one = kinds.add_parser(name, help=kind.help, description=kind.help)
        folder = FOLDERS[kind.folder]
        for option in f"{kind.options} {folder.options}".split():
            _, said = OPTIONS[option]
            default = {**folder.defaults, **kind.defaults}.get(option, OPTIONS[option][0])
            switch: Any = {}
            if isinstance(default, bool):
                switch = {"nargs": "?", "const": "1", "choices": ("0", "1")}
                default = int(default)
            shown = f" ({default})" if default != "" and (default or switch) else ""
            one.add_argument(_flag(option), dest=option, help=said + shown, **switch)
        one.add_argument("--dry-run", action="store_true", help="print what would be made")
        one.add_argument("--variables", action="store_true", help="take the rest from variables")
        words = "after --: " + ", ".join(_DICTIONARIES)
        hidden = argparse.SUPPRESS
        one.add_argument("words", nargs="*", help=words if folder.takes_words else hidden)


def run(args: argparse.Namespace) -> int:
    """Make a data folder."""
    if args.variables and os.environ.get("DRY_RUN", "0") != "0":
        raise ValueError(f"DRY_RUN is {os.environ['DRY_RUN']!r}, and this has no dry run; unset it")
    kind = KINDS[args.kind]
    folder = FOLDERS[kind.folder]
    texts = {}
    for name in f"{kind.options} {folder.options}".split():
        variable = os.environ.get(name) if args.variables else None
        texts[name] = getattr(args, name) or variable or ""
    if "TABLE" in texts and args.words and not texts["TABLE"]:
        texts["TABLE"] = args.words.pop(0)
    if args.words and not folder.takes_words:
        hint = "sentencepiece makes the dictionary" if args.words[0] in _DICTIONARIES else ""
        hint = hint or "options have names, see --help"
        raise ValueError(f"unexpected argument {args.words[0]}; {hint}")
    if args.variables:
        _refuse_without_effect(args.kind, texts)
    given = Given(texts, args.words, args.variables)
    value = read(args.kind, given)
    corpus = _CORPUS_OF.get(args.kind, "")
    if hasattr(value, "raw"):
        value.downloads = value.downloads or str(ROOT / "data" / "downloads" / corpus)
        if value.raw and not Path(value.raw).exists():
            raise ValueError(f"there is no archive or folder RAW={value.raw}")
    if getattr(value, "hold_out", 1) == 0 and not hasattr(value, "valid") and not kind.has_valid:
        raise ValueError(
            f"{given.shown('HOLD_OUT')} is 0, and {args.kind} has no validation set of its own;"
            " give a number from 2 on"
        )
    kind.check(value)
    value.out = out = Path(value.out or ROOT / "data" / kind.out.format(**vars(value)))
    if not out.name:
        raise ValueError(f"OUT is {str(out)!r}; give a folder with a name")
    blueprint = folder.blueprint(value, given)
    # what is published needs no network, nor its archives, once OUT is made of it
    has_raw = bool(getattr(value, "raw", ""))
    value.is_complete = (out / "corpus.json").is_file() and not (value.force or has_raw)
    if args.dry_run or (args.variables and os.environ.get("DRY_RUN") == "1"):
        hidden = ("out", "workers", "force", "languages", "chosen", "is_complete")
        options = {key: item for key, item in vars(value).items() if key not in hidden and item}
        print(f"would make {out}, {kind.help}")
        print(*(f"  {_flag(key)} {item}" for key, item in options.items()), sep="\n")
        return 0

    def fetch(languages: Sequence[str] = ()) -> Path:
        if value.raw:
            return Path(value.raw)
        say(f"downloading {corpus}")
        downloads = Path(value.downloads)
        download.fetch(corpus, downloads, languages, value.jobs)
        return downloads

    def remove_raw() -> None:  # what a folder was made of, or not; of one not made yet it is kept
        raw = Path(f"{out}.raw")
        made = (out / "corpus.json").is_file()
        if kind.extracts and made and (raw / MARK).is_file():  # others' OUT.raw is the user's
            shutil.rmtree(raw)

    names_text = bool({"TRAIN", "TABLE"} & set(kind.options.split()))
    build(lambda: blueprint(kind.rows(value, fetch)), out, value.force, remove_raw, names_text)
    return 0


def _refuse_without_effect(name: str, texts: Mapping[str, str]) -> None:
    """Raise ValueError for a variable that is set and belongs to another kind of folder."""
    for option in OPTIONS:
        if option in texts or option in _MACHINE or not os.environ.get(option):
            continue
        near = next((known for known in texts if known[:3] == option[:3]), "")
        remedy = f"; here it is {near}" if near else ""
        raise ValueError(f"{option} has no effect on {name}: unset it{remedy}")
