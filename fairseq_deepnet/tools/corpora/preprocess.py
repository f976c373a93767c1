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

from fairseq_deepnet.provenance import ROOT
from fairseq_deepnet.tools.corpora import recipes
from fairseq_deepnet.tools.corpora.builder import Corpus, build
from fairseq_deepnet.tools.corpora.pairs import Row, read_table, rows_of


class Option(NamedTuple):
    """A variable of a script, and an option of the same name in small letters.

    `read` turns text into a value and raises ValueError that says what it must be. `default` is
    None where there is none; an option whose default is False is a switch.
    """

    name: str
    help: str
    default: Any = None
    read: Callable[[str], Any] = str
    required: bool = False

    @property
    def flag(self) -> str:
        """Return the option's name on the command line."""
        return f"--{self.name.lower().replace('_', '-')}"


def _matching(pattern: str, what: str, kind: Callable[[str], Any] = str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"must be {what}")
        return kind(text)

    return read


_COUNT: Final = _matching(r"[1-9][0-9]{0,8}", "a whole number above 0", int)
_NUMBER: Final = _matching(r"[0-9]+(\.[0-9]+)?", "a number", float)
_SWITCH: Final = _matching("[01]", "0 or 1", lambda text: text == "1")
_LANGUAGE: Final = _matching("[A-Za-z][A-Za-z0-9_]*", "a language code such as de")
_HOLD_OUT: Final = _matching("0|[2-9]|[1-9][0-9]{1,8}", "0, or 2 and more", int)
_WHOLE: Final = _matching("-?[0-9]+", "a whole number", int)


def _options(*rows: tuple[Any, ...]) -> dict[str, Option]:
    return {row[0]: Option(*row) for row in rows}


_RUN: Final = _options(
    ("OUT", "data folder to make", None, Path),
    ("WORKERS", "processes (all cores)", None, _COUNT),
    ("FORCE", "make it anew even if it is there", False, _SWITCH),
)
_SPLITS: Final = _options(
    ("TRAIN", "prefix of PREFIX.LANGUAGE[.gz]", None, str, True),
    ("VALID", "the same", None, str, True),
    ("TEST", "the same; several between commas: test, test1, ..."),
)
_SIDES: Final = _options(
    ("SRC", "source language, the files' ending", None, _LANGUAGE, True),
    ("TGT", "target language, the files' ending", None, _LANGUAGE, True),
)
_TEXT: Final = _options(
    ("VOCAB_SIZE", "number of subwords", 8000, _COUNT),
    ("SUBWORDS", "bpe or unigram", "bpe", _matching("bpe|unigram", "bpe or unigram")),
    ("CHARACTER_COVERAGE", "share of characters in the vocabulary", 1.0, _NUMBER),
    ("BYTE_FALLBACK", "spell unseen characters as bytes", False, _SWITCH),
    ("SAMPLE", "lines that subwords are learnt on, at most", 2_000_000, _COUNT),
    ("MIN_WORDS", "training text below is dropped", 1, _COUNT),
    ("MAX_WORDS", "training text above is dropped", 250, _COUNT),
    ("DROP_DUPLICATES", "drop repeated training text", False, _SWITCH),
)
_RATIO: Final = _options(("MAX_RATIO", "training pairs above are dropped", 5.0, _NUMBER))
_JOINT: Final = _options(("JOINT", "1: one model for both, 0: one each", True, _SWITCH))
_LANG_CODE: Final = _options(("LANG_CODE", "the files' ending", None, _LANGUAGE, True))
_MANY: Final = _options(
    ("TABLE", "split, source, target, prefix; between tabs", None, Path, True),
    ("TEMPERATURE", "of the subwords' sample; 1: as the text is", 5.0, _NUMBER),
)
_CLEAN_ON: Final = _matching("words|subwords", "words or subwords")
_TOKENS: Final = _options(
    ("HOLD_OUT", "every such training pair is for validation", 0, _HOLD_OUT),
    ("MERGES", "number of byte-pair codes", 10_000, _COUNT),
    ("JOINED", "one dictionary for both languages", False, _SWITCH),
    ("LOWERCASE", "lower case", False, _SWITCH),
    ("AGGRESSIVE", "split words at hyphens", False, _SWITCH),
    ("PUNCTUATION", "normalise punctuation in train", False, _SWITCH),
    ("APOSTROPHES", "make ’ a plain apostrophe in valid and test", False, _SWITCH),
    ("CLEAN_ON", "words or subwords: what is counted", "words", _CLEAN_ON),
    ("MIN_TOKENS", "pairs below are dropped", 1, _COUNT),
    ("MAX_TOKENS", "pairs above are dropped", 175, _COUNT),
    ("MAX_RATIO", "training pairs above are dropped", 1.5, _NUMBER),
)
_RAW: Final = _options(
    ("RAW", "archive or folder with the text (none: download)"),
    ("DOWNLOADS", "folder for what is downloaded"),
)
_LANGS: Final = _options(("LANGS", "languages, between spaces"))
_OPUS: Final = _options(
    ("UNPACKED", "folder for what is unpacked", ROOT / "data" / "opus100.raw", Path),
    ("OVERLAP", "1: count test text in training text", True, _SWITCH),
)
_VARIANT: Final = "tokenized|sentencepiece"
_PUBLISHED: Final = _options(
    ("VARIANT", _VARIANT, None, _matching(_VARIANT, "tokenized or sentencepiece"))
)
_DICTIONARIES: Final = _options(
    ("THRESHOLDSRC", "rarer words are not in the source dictionary", 0, _WHOLE),
    ("THRESHOLDTGT", "the same for the target", 0, _WHOLE),
    ("NWORDSSRC", "size of the source dictionary at most", -1, _WHOLE),
    ("NWORDSTGT", "the same for the target", -1, _WHOLE),
    ("PADDING_FACTOR", "sizes are multiples of it", 8, _WHOLE),
)
"""Of fairseq-preprocess; they are given after --."""


class Given:
    """What a user has given: text by the names of variables, and words after --."""

    def __init__(self, texts: Mapping[str, str], words: Sequence[str], by_variable: bool) -> None:
        self.texts = {name: text for name, text in texts.items() if text}
        self.words = list(words)
        self._by_variable = by_variable

    def shown(self, name: str) -> str:
        """Return the name that the user has for a variable."""
        return name if self._by_variable else Option(name, "").flag

    def read(self, options: Mapping[str, Option], defaults: Mapping[str, Any]) -> SimpleNamespace:
        """Return values by the options' names in small letters.

        Raises ValueError for the first that is missing or cannot be.
        """
        values = {}
        for name, option in options.items():
            key, text = name.lower(), self.texts.get(name)
            values[key] = defaults.get(key, option.default)
            if text is not None:
                try:
                    values[key] = option.read(text)
                except ValueError as error:
                    raise ValueError(f"{self.shown(name)} is {text!r}; it {error}") from None
            elif values[key] is None and option.required:
                raise ValueError(f"{self.shown(name)} is not set; see --help")
        if values.get("workers", 1) is None:
            values["workers"] = len(os.sched_getaffinity(0))
        if values.get("src") and values["src"] == values["tgt"]:
            both = f"{self.shown('SRC')} and {self.shown('TGT')}"
            raise ValueError(f"{both} are both {values['src']!r}; they must differ")
        return SimpleNamespace(**values, fairseq_options=" ".join(self.words))

    def dictionaries(self) -> dict[str, int]:
        """Return fairseq-preprocess' options for dictionaries; ValueError for any others."""
        found = {}
        words = iter(self.words)
        for word in words:
            flag, equals, value = word.partition("=")
            name = next((n for n, option in _DICTIONARIES.items() if option.flag == flag), None)
            if name is None:
                known = ", ".join(option.flag for option in _DICTIONARIES.values())
                raise ValueError(
                    f"{word} is set by this script or means nothing to it; see --help for its"
                    f" variables, and of fairseq-preprocess' options take {known}"
                )
            text = value if equals else next(words, "")
            try:
                found[name.lower()] = _WHOLE(text)
            except ValueError as error:
                raise ValueError(f"{flag} is {text!r}; it {error}") from None
        return found


def _subwords(value: SimpleNamespace) -> dict[str, Any]:
    from fairseq_deepnet.tools.corpora.clean import Limits
    from fairseq_deepnet.tools.corpora.subwords import SubwordOptions

    names = ("subwords", "vocab_size", "character_coverage", "byte_fallback", "sample")
    ratio = getattr(value, "max_ratio", Limits.max_ratio)
    limits = Limits(value.min_words, value.max_words, ratio, value.drop_duplicates)
    options = SubwordOptions(*(getattr(value, name) for name in names))
    return {"options": options, "limits": limits, "workers": value.workers}


Rows = Callable[[], Sequence[Row]]
"""Called when no other run is making the folder: it may have to fetch the text first."""


def _pair(value: SimpleNamespace, given: Given) -> Callable[[Rows], Corpus]:
    from fairseq_deepnet.tools.corpora.text_folders import OnePair

    given.dictionaries()  # sentencepiece decides, but a wrong option is told
    common = _subwords(value)
    return lambda rows: OnePair(
        rows(), **common, joint=value.joint, fairseq_options=value.fairseq_options
    )


def _language(value: SimpleNamespace, given: Given) -> Callable[[Rows], Corpus]:
    from fairseq_deepnet.tools.corpora.text_folders import OneLanguage

    common = _subwords(value)
    return lambda rows: OneLanguage(rows(), **common)


def _pairs(value: SimpleNamespace, given: Given) -> Callable[[Rows], Corpus]:
    from fairseq_deepnet.tools.corpora.text_folders import ManyPairs

    common = _subwords(value)
    return lambda rows: ManyPairs(rows(), **common, temperature=value.temperature)


def _moses(value: SimpleNamespace, given: Given) -> Callable[[Rows], Corpus]:
    from fairseq_deepnet.tools.corpora.clean import Limits
    from fairseq_deepnet.tools.corpora.moses import Tokenisation
    from fairseq_deepnet.tools.corpora.moses_folder import Dictionaries, MosesPair

    valid, hold_out = given.shown("VALID"), given.shown("HOLD_OUT")
    if value.valid and value.hold_out:
        raise ValueError(f"both {valid} and {hold_out} are set; choose one")
    if not value.valid and not value.hold_out:
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
        options: by name.
        corpus: checks values, and makes a corpus of rows.
        rows: where the text is, fetched first where it must be.
        out: default of OUT in data/, with the names of values; "" where OUT must be set.
        defaults: other than the options' own, by name in small letters.
        check: refuses values before anything is fetched, and completes them.
        words: whether options for dictionaries may follow --.
    """

    help: str
    options: dict[str, Option]
    corpus: Callable[[SimpleNamespace, Given], Callable[[Rows], Corpus]]
    rows: Callable[[SimpleNamespace], Sequence[Row]]
    out: str = ""
    defaults: Mapping[str, Any] = {}
    check: Callable[[SimpleNamespace], None] = lambda value: None
    words: bool = False


def _own_pair(value: SimpleNamespace) -> list[Row]:
    return rows_of((value.src, value.tgt), value.train, value.valid, value.test)


def _own_language(value: SimpleNamespace) -> list[Row]:
    return rows_of((value.lang_code,), value.train, value.valid, value.test)


def _table(value: SimpleNamespace) -> None:
    if not value.table.is_file():
        raise ValueError(f"TABLE={value.table} is not a file")


_PAIR: Final = _SIDES | _RUN | _JOINT | _TEXT | _RATIO
_MOSES: Final = _SIDES | _RUN | _TOKENS
_NO_VALID: Final = _SPLITS | {"VALID": _SPLITS["VALID"]._replace(required=False)}
_PAIRS: Final = _RUN | _TEXT | _RATIO | {"TEMPERATURE": _MANY["TEMPERATURE"]}
_LINES: Final = {"max_words": 1000}  # paragraphs are lines, too
_COVERAGE: Final = {"character_coverage": 0.9995}
_GERMAN: Final = {"src": "de", "tgt": "en"}

KINDS: Final[dict[str, Kind]] = {
    "pair": Kind(
        "one language pair, sentencepiece",
        _SPLITS | _PAIR,
        _pair,
        _own_pair,
        "corpus.{src}-{tgt}",
        words=True,
    ),
    "pairs": Kind(
        "many language pairs with language tokens, from a table",
        _MANY | _PAIRS,
        _pairs,
        lambda value: read_table(value.table),
        defaults=_COVERAGE | {"vocab_size": 32_000},
        check=_table,
    ),
    "language": Kind(
        "one language, for language models",
        _LANG_CODE | _SPLITS | _RUN | _TEXT,
        _language,
        _own_language,
        "corpus_lm.{lang_code}",
        _LINES,
    ),
    "moses": Kind(
        "one pair in Moses tokens and byte-pair codes",
        _NO_VALID | _MOSES,
        _moses,
        _own_pair,
        "corpus.tokenized.{src}-{tgt}",
        words=True,
    ),
    "multi30k": Kind(
        "Multi30k, one pair",
        _RAW | _PAIR,
        _pair,
        lambda value: recipes.multi30k(value, value.src, value.tgt),
        "multi30k.{src}-{tgt}",
        _GERMAN | {"vocab_size": 4000},
        lambda value: recipes.refuse_foreign(value.src, value.tgt),
        words=True,
    ),
    "multi30k-lm": Kind(
        "Multi30k, one language",
        _RAW | _LANG_CODE | _RUN | _TEXT,
        _language,
        lambda value: recipes.multi30k(value, value.lang_code),
        "multi30k_lm.{lang_code}",
        _LINES | {"lang_code": "en", "vocab_size": 4000},
        lambda value: recipes.refuse_foreign(value.lang_code),
    ),
    "multi30k-multilingual": Kind(
        "Multi30k, several languages",
        _RAW | _LANGS | _PAIRS,
        _pairs,
        recipes.multi30k_pairs,
        "multi30k_multilingual",
        {"langs": "cs de en fr", "vocab_size": 8000, "temperature": 1.0},
        recipes.check_multi30k_languages,
    ),
    "iwslt14": Kind(
        "IWSLT 2014 German-English",
        _RAW | _PUBLISHED | _MOSES,
        _moses,
        recipes.iwslt14,
        "iwslt14.tokenized.{src}-{tgt}",
        _GERMAN | {"hold_out": 23, "lowercase": True, "apostrophes": True},
        recipes.check_iwslt14,
        words=True,
    ),
    "iwslt14 sentencepiece": Kind(
        "",
        _RAW | _PUBLISHED | _PAIR | {"HOLD_OUT": _TOKENS["HOLD_OUT"]},
        _pair,
        recipes.iwslt14,
        "iwslt14.sentencepiece.{src}-{tgt}",
        _GERMAN | {"hold_out": 23, "vocab_size": 10_000},
        recipes.check_iwslt14,
    ),
    "wmt17": Kind(
        "WMT 2017 English-German",
        _RAW | _PUBLISHED | _PAIR,
        _pair,
        recipes.wmt17,
        "wmt17.en-de",
        {"src": "en", "tgt": "de", "vocab_size": 32_000},
        recipes.check_wmt17,
        words=True,
    ),
    "wmt17 tokenized": Kind(
        "",
        _RAW | _PUBLISHED | _MOSES,
        _moses,
        recipes.wmt17,
        "wmt17.tokenized.en-de",
        {
            **{"src": "en", "tgt": "de", "hold_out": 100, "merges": 40_000, "joined": True},
            **{"aggressive": True, "punctuation": True, "apostrophes": True},
            **{"clean_on": "subwords", "max_tokens": 250},
        },
        recipes.check_wmt17,
    ),
    "opus100": Kind(
        "OPUS-100, English with 99 languages",
        _RAW | _LANGS | _OPUS | _PAIRS,
        _pairs,
        recipes.opus100,
        "opus100{chosen}",
        _COVERAGE
        | {"vocab_size": 64_000, "subwords": "unigram", "byte_fallback": True}
        | {"sample": 10_000_000},
        recipes.check_opus100,
    ),
}
"""By name; "NAME VARIANT" is another VARIANT of NAME."""


def _variants(name: str) -> list[Kind]:
    return [kind for other, kind in KINDS.items() if other.split()[0] == name]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `deepnet preprocess`."""
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    kinds = parser.add_subparsers(required=True, metavar="KIND", dest="kind")
    for name in (name for name in KINDS if " " not in name):
        one = kinds.add_parser(name, help=KINDS[name].help, description=KINDS[name].help)
        options = {n: o for kind in _variants(name) for n, o in kind.options.items()}
        for option in options.values():
            more = {"const": "1", "action": "store_const"} if option.default is False else {}
            one.add_argument(option.flag, dest=option.name, help=option.help, **more)
        one.add_argument("--variables", action="store_true", help="take the rest from variables")
        words = "after --: " + ", ".join(option.flag for option in _DICTIONARIES.values())
        help_line = words if KINDS[name].words else argparse.SUPPRESS
        one.add_argument("words", nargs="*", help=help_line)


def run(args: argparse.Namespace) -> int:
    """Make a data folder."""
    texts = {}
    for name in {name for kind in _variants(args.kind) for name in kind.options}:
        variable = os.environ.get(name) if args.variables else None
        texts[name] = getattr(args, name) or variable or ""
    if "TABLE" in texts and args.words and not texts["TABLE"]:
        texts["TABLE"] = args.words.pop(0)
    if args.words and not KINDS[args.kind].words:
        raise ValueError(f"unexpected argument {args.words[0]}; options have names, see --help")
    given = Given(texts, args.words, args.variables)
    if "VARIANT" in texts:
        given.read(_PUBLISHED, {})
    kind = KINDS.get(f"{args.kind} {texts.get('VARIANT')}", KINDS[args.kind])
    value = given.read(kind.options, kind.defaults)
    if value.out is None and not kind.out:
        raise ValueError(f"{given.shown('OUT')} is not set; see --help")
    kind.check(value)
    value.out = value.out or ROOT / "data" / kind.out.format(**vars(value))
    make = kind.corpus(value, given)
    build(lambda: make(lambda: kind.rows(value)), value.out, value.force)
    recipes.forget_raw_text(value.out)
    return 0
