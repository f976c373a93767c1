"""Raw text to what fairseq-train reads: the logic and the defaults of scripts/preprocess*.sh.

Each kind of folder takes options that bear the names of the scripts' variables: VOCAB_SIZE is
--vocab-size. With --variables, what no option says is taken from the environment.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from fairseq_deepnet.files import ROOT
from fairseq_deepnet.tools.corpora import recipes
from fairseq_deepnet.tools.corpora.builder import Blueprint, Row, build, rows_of
from fairseq_deepnet.tools.corpora.text_folders import read_table
from fairseq_deepnet.tools.processor import all_cores

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
    "FORCE": (False, "make it anew even if it is there"),
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
    "RAW": ("", "archive or folder with the text (none: download)"),
    "DOWNLOADS": ("", "folder for what is downloaded"),
    "LANGS": ("", "languages, between spaces"),
    "UNPACKED": (str(ROOT / "data" / "opus100.raw"), "folder for what is unpacked"),
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
_DICTIONARIES: Final = (
    *("--thresholdsrc", "--thresholdtgt", "--nwordssrc", "--nwordstgt", "--padding-factor"),
)
"""Options of fairseq-preprocess, which are given after --."""

_RUN: Final = "OUT WORKERS FORCE "
_TEXT: Final = (
    _RUN + "VOCAB_SIZE SUBWORDS CHARACTER_COVERAGE BYTE_FALLBACK SAMPLE "
    "MIN_WORDS MAX_WORDS DROP_DUPLICATES "
)
_PAIR: Final = "SRC TGT " + _TEXT + "MAX_RATIO JOINT "
_PAIRS: Final = _TEXT + "MAX_RATIO TEMPERATURE "
_MOSES: Final = (
    "SRC TGT " + _RUN + "HOLD_OUT MERGES JOINED LOWERCASE AGGRESSIVE PUNCTUATION APOSTROPHES "
    "CLEAN_ON MIN_TOKENS MAX_TOKENS MAX_RATIO "
)
_SPLITS: Final = "TRAIN VALID TEST "
_RATIO: Final = {"MAX_RATIO": 1.5}
"""Of tokens; raw words differ more."""
_RAW: Final = "RAW DOWNLOADS "


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


Rows = Callable[[], Sequence[Row]]
"""Called when no other run is making the folder: it may have to fetch the text first."""


def _sentencepiece(value: SimpleNamespace) -> dict[str, Any]:
    from fairseq_deepnet.tools.corpora.clean import Limits
    from fairseq_deepnet.tools.corpora.subwords import SubwordOptions

    names = ("subwords", "vocab_size", "character_coverage", "byte_fallback", "sample")
    ratio = getattr(value, "max_ratio", Limits.max_ratio)
    limits = Limits(value.min_words, value.max_words, ratio, value.drop_duplicates)
    options = SubwordOptions(*(getattr(value, name) for name in names))
    return {"options": options, "limits": limits, "workers": value.workers}


def _pair(value: SimpleNamespace, given: Given) -> Callable[[Rows], Blueprint]:
    from fairseq_deepnet.tools.corpora.text_folders import OnePair

    given.dictionaries()  # sentencepiece decides, but a wrong option is told
    common = _sentencepiece(value)
    return lambda rows: OnePair(
        rows(), **common, joint=value.joint, fairseq_options=value.fairseq_options
    )


def _language(value: SimpleNamespace, given: Given) -> Callable[[Rows], Blueprint]:
    from fairseq_deepnet.tools.corpora.text_folders import OneLanguage

    common = _sentencepiece(value)
    return lambda rows: OneLanguage(rows(), **common)


def _pairs(value: SimpleNamespace, given: Given) -> Callable[[Rows], Blueprint]:
    from fairseq_deepnet.tools.corpora.text_folders import ManyPairs

    if "TABLE" in given.texts and not Path(value.table).is_file():
        raise ValueError(f"{given.shown('TABLE')}={value.table} is not a file")
    common = _sentencepiece(value)
    return lambda rows: ManyPairs(rows(), **common, temperature=value.temperature)


def _moses(value: SimpleNamespace, given: Given) -> Callable[[Rows], Blueprint]:
    from fairseq_deepnet.tools.corpora.clean import Limits
    from fairseq_deepnet.tools.corpora.moses import Tokenisation
    from fairseq_deepnet.tools.corpora.moses_folder import Dictionaries, MosesPair

    valid, hold_out = given.shown("VALID"), given.shown("HOLD_OUT")
    has_valid = bool(getattr(value, "valid", ""))
    if has_valid and value.hold_out:
        raise ValueError(f"both {valid} and {hold_out} are set; choose one")
    if not has_valid and not value.hold_out:
        raise ValueError(f"set {valid}=PREFIX, or {hold_out}=N to take every Nth training pair")
    dictionaries = Dictionaries(**given.dictionaries())
    limits = Limits(value.min_tokens, value.max_tokens, value.max_ratio)
    how = Tokenisation(value.lowercase, value.aggressive, value.punctuation, value.apostrophes)
    names = ("merges", "joined", "hold_out", "clean_on", "fairseq_options", "workers")
    same = {name: getattr(value, name) for name in names}
    return lambda rows: MosesPair(rows(), how, limits, dictionaries=dictionaries, **same)


class Kind(NamedTuple):
    """A kind of folder, or a published corpus that becomes one.

    Attributes:
        help: one line.
        options: names of variables.
        blueprint: checks values, and makes a blueprint of rows.
        rows: where the text is, fetched first where it must be.
        out: default of OUT in data/, with the names of values.
        defaults: other than the options' own.
        required: variables that must be set.
        check: refuses values before anything is fetched, and may complete them.
    """

    help: str
    options: str
    blueprint: Callable[[SimpleNamespace, Given], Callable[[Rows], Blueprint]]
    rows: Callable[[SimpleNamespace], Sequence[Row]]
    out: str = ""
    defaults: Mapping[str, Any] = {}
    required: str = ""
    check: Callable[[SimpleNamespace], None] = lambda value: None


def _own_rows(value: SimpleNamespace) -> list[Row]:
    pair = (value.lang_code,) if hasattr(value, "lang_code") else (value.src, value.tgt)
    return rows_of(pair, value.train, value.valid, value.test)


KINDS: Final[dict[str, Kind]] = {
    "pair": Kind(
        help="one language pair, sentencepiece",
        options=_SPLITS + _PAIR,
        blueprint=_pair,
        rows=_own_rows,
        out="corpus.{src}-{tgt}",
        required="SRC TGT TRAIN VALID",
    ),
    "pairs": Kind(
        help="many pairs with language tokens, from a table",
        options="TABLE " + _PAIRS,
        blueprint=_pairs,
        rows=lambda value: read_table(Path(value.table)),
        defaults={"CHARACTER_COVERAGE": 0.9995, "VOCAB_SIZE": 32_000},
        required="TABLE OUT",
    ),
    "language": Kind(
        help="one language, for language models",
        options=_SPLITS + "LANG_CODE " + _TEXT,
        blueprint=_language,
        rows=_own_rows,
        out="corpus_lm.{lang_code}",
        defaults={"MAX_WORDS": 1000},  # paragraphs are lines, too
        required="LANG_CODE TRAIN VALID",
    ),
    "moses": Kind(
        help="one pair, Moses tokens and byte-pair codes",
        options=_SPLITS + _MOSES,
        blueprint=_moses,
        rows=_own_rows,
        out="corpus.tokenized.{src}-{tgt}",
        defaults=_RATIO,
        required="SRC TGT TRAIN",
    ),
    "multi30k": Kind(
        help="Multi30k, one pair",
        options=_RAW + _PAIR,
        blueprint=_pair,
        rows=recipes.multi30k,
        out="multi30k.{src}-{tgt}",
        defaults={"SRC": "de", "TGT": "en", "VOCAB_SIZE": 4000},
        check=recipes.check_multi30k,
    ),
    "multi30k-lm": Kind(
        help="Multi30k, one language",
        options=_RAW + "LANG_CODE " + _TEXT,
        blueprint=_language,
        rows=recipes.multi30k,
        out="multi30k_lm.{lang_code}",
        defaults={"LANG_CODE": "en", "VOCAB_SIZE": 4000, "MAX_WORDS": 1000},
        check=recipes.check_multi30k,
    ),
    "multi30k-multilingual": Kind(
        help="Multi30k, several languages",
        options=_RAW + "LANGS " + _PAIRS,
        blueprint=_pairs,
        rows=recipes.multi30k_pairs,
        out="multi30k_multilingual",
        defaults={"LANGS": "cs de en fr", "VOCAB_SIZE": 8000, "TEMPERATURE": 1.0},
        check=recipes.check_multi30k_languages,
    ),
    "iwslt14": Kind(
        help="IWSLT 2014 German-English, as fairseq's recipe makes it",
        options=_RAW + _MOSES,
        blueprint=_moses,
        rows=recipes.iwslt14,
        out="iwslt14.tokenized.{src}-{tgt}",
        defaults={**_RATIO, "SRC": "de", "TGT": "en", "HOLD_OUT": 23}
        | {"LOWERCASE": True, "APOSTROPHES": True},
        check=recipes.check_iwslt14,
    ),
    "iwslt14-sentencepiece": Kind(
        help="IWSLT 2014 German-English, raw cased text",
        options=_RAW + "HOLD_OUT " + _PAIR,
        blueprint=_pair,
        rows=recipes.iwslt14_raw,
        out="iwslt14.sentencepiece.{src}-{tgt}",
        defaults={"SRC": "de", "TGT": "en", "HOLD_OUT": 23, "VOCAB_SIZE": 10_000},
        check=recipes.check_iwslt14,
    ),
    "wmt17": Kind(
        help="WMT 2017 English-German, raw cased text",
        options=_RAW + _PAIR,
        blueprint=_pair,
        rows=recipes.wmt17_raw,
        out="wmt17.en-de",
        defaults={"SRC": "en", "TGT": "de", "VOCAB_SIZE": 32_000},
        check=recipes.check_wmt17,
    ),
    "wmt17-tokenized": Kind(
        help="WMT 2017 English-German, as fairseq's recipe makes it",
        options=_RAW + _MOSES,
        blueprint=_moses,
        rows=recipes.wmt17,
        out="wmt17.tokenized.en-de",
        defaults={
            **_RATIO,
            **{"SRC": "en", "TGT": "de", "HOLD_OUT": 100, "MERGES": 40_000},
            **{"MAX_TOKENS": 250, "CLEAN_ON": "subwords"},
            **dict.fromkeys(("JOINED", "AGGRESSIVE", "PUNCTUATION", "APOSTROPHES"), True),
        },
        check=recipes.check_wmt17,
    ),
    "opus100": Kind(
        help="OPUS-100, English with 99 languages",
        options=_RAW + "LANGS UNPACKED OVERLAP " + _PAIRS,
        blueprint=_pairs,
        rows=recipes.opus100,
        out="opus100{chosen}",
        defaults={
            **{"CHARACTER_COVERAGE": 0.9995, "VOCAB_SIZE": 64_000, "SUBWORDS": "unigram"},
            **{"BYTE_FALLBACK": True, "SAMPLE": 10_000_000},
        },
        check=recipes.check_opus100,
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `deepnet preprocess`."""
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    kinds = parser.add_subparsers(required=True, metavar="KIND", dest="kind")
    for name, kind in KINDS.items():
        one = kinds.add_parser(name, help=kind.help, description=kind.help)
        for option in kind.options.split():
            default, said = OPTIONS[option]
            if default is False:
                one.add_argument(
                    _flag(option), dest=option, help=said, action="store_const", const="1"
                )
            else:
                one.add_argument(_flag(option), dest=option, help=said)
        one.add_argument("--variables", action="store_true", help="take the rest from variables")
        words = "after --: " + ", ".join(_DICTIONARIES)
        takes = kind.blueprint in (_pair, _moses)
        one.add_argument("words", nargs="*", help=words if takes else argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Make a data folder."""
    kind = KINDS[args.kind]
    texts = {}
    for name in kind.options.split():
        variable = os.environ.get(name) if args.variables else None
        texts[name] = getattr(args, name) or variable or ""
    if "TABLE" in texts and args.words and not texts["TABLE"]:
        texts["TABLE"] = args.words.pop(0)
    if args.words and kind.blueprint not in (_pair, _moses):
        raise ValueError(f"unexpected argument {args.words[0]}; options have names, see --help")
    given = Given(texts, args.words, args.variables)
    value = given.read(kind.options, kind.defaults, kind.required)
    kind.check(value)
    out = Path(value.out) if value.out else ROOT / "data" / kind.out.format(**vars(value))
    if not out.name:
        raise ValueError(f"OUT is {value.out!r}; give a folder with a name")
    value.out = out
    blueprint = kind.blueprint(value, given)
    build(lambda: blueprint(lambda: kind.rows(value)), out, value.force)
    if args.kind.startswith(("iwslt14", "wmt17")):  # others' OUT.raw is the user's
        recipes.forget_raw_text(out)
    return 0
