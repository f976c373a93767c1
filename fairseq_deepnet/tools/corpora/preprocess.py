"""The command `deepnet preprocess`, which builds a data folder from raw text.

deepnet preprocess pair --src de --tgt en --train raw/train --valid raw/valid --out data/mine
deepnet preprocess multi30k --raw my/multi30k
"""

import argparse
import dataclasses
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from fairseq_deepnet.errors import did_you_mean
from fairseq_deepnet.files import ROOT
from fairseq_deepnet.tools.corpora.build import Row, build, claimed, is_complete, sources_of
from fairseq_deepnet.tools.corpora.download import fetch
from fairseq_deepnet.tools.corpora.published import CORPORA, FOLDERS, SAMPLE
from fairseq_deepnet.tools.corpora.text import Recipe, read_lines
from fairseq_deepnet.tools.devices import all_cores

HELP: Final = {
    "vocab_size": "number of sentencepiece subwords",
    "subwords": "sentencepiece's algorithm",
    "character_coverage": "share of the text's characters to cover; 0.9995 for Chinese",
    "byte_fallback": "1: spell unseen characters as bytes",
    "sample": "maximum number of lines from which to learn subwords",
    "joint": "1: one model and dictionary for both languages; 0: separate ones",
    "temperature": "temperature for sampling languages to learn subwords; 1: no change",
    "max_words": "drop training lines with more words (Moses: tokens)",
    "max_ratio": "drop training pairs with a higher ratio of word counts",
    "lowercase": "1: convert the text to lower case",
    "merges": "number of byte-pair codes",
    "hold_out": "N: use every Nth training pair for validation (0: none)",
}
"""Field of `Recipe` -> help text of its option."""
_ONE: Final = ("vocab_size", "sample", "temperature", "max_words", "max_ratio", "merges")
_LEAST: Final = {"hold_out": 0, **dict.fromkeys(_ONE, 1)}
_TEXT: Final = ["src", "tgt", "lang_code", "languages", "raw", "train", "valid", "test", "table"]
_CODE: Final = "[A-Za-z][A-Za-z0-9_]*"
_LINE: Final = re.compile(rf"(train|valid\d*|test\d*)\t({_CODE})\t(?!\2\t)({_CODE})\t(.+)")


def read_table(path: Path) -> list[Row]:
    """Read a table that lists the text files of many language pairs, and return its rows.

    Raises ValueError if a line is invalid, there are none, or a language has no training text.
    """
    rows: dict[tuple[str, tuple[str, ...]], Row] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        row = match and Row(match[1], tuple(sorted(match.group(2, 3))), match[4])
        if not row or row[:2] in rows:
            raise ValueError(
                f"{path}, line {number}: {line!r} is not a new split (train, valid, test, test1,"
                " ...), two languages and a prefix, separated by tabs"
            )
        rows[row[:2]] = row
    if not rows:
        raise ValueError(f"{path} lists no text; add lines of a split, two languages and a prefix")
    trained = {code for row in rows.values() if row.split == "train" for code in row.languages}
    for row in rows.values():
        if unseen := set(row.languages) - trained:
            raise ValueError(f"{path}: {row.pair}: no training text in {', '.join(sorted(unseen))}")
    return list(rows.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `deepnet preprocess`."""
    lines = [f"  {name:<22} {folder.what}" for name, folder in FOLDERS.items()]
    own = sum(folder.rows is None for folder in FOLDERS.values())
    lines.insert(own, "published corpora (downloaded, or RAW=FOLDER):")
    lines = ["your own text:", *lines, "", "Defaults depend on the recipe; --dry-run prints them."]
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join(lines)
    parser.add_argument("recipe", choices=FOLDERS, metavar="RECIPE", help="a name listed below")
    text = parser.add_argument_group("text")
    text.add_argument("--src", help="source language, as in the file names")
    text.add_argument("--tgt", help="target language")
    text.add_argument("--lang-code", help="language of a language model")
    text.add_argument("--languages", "--langs", help='languages of a published corpus: "de fr"')
    text.add_argument("--train", help="training text: PREFIX of the files PREFIX.LANGUAGE[.gz]")
    text.add_argument("--valid", help="prefix of the validation text")
    text.add_argument("--test", help="prefix of the test text, or several separated by commas")
    text.add_argument("--table", type=Path, help="table of split, source, target and prefix")
    text.add_argument("--raw", type=Path, help="folder or archive of a published corpus")
    text.add_argument("--out", type=Path, help="data folder to build")
    options = parser.add_argument_group("recipe")
    for field in dataclasses.fields(Recipe):
        if field.name in HELP:
            kind: type = type(field.default)
            flag = f"--{field.name.replace('_', '-')}"
            choices = {bool: (0, 1), str: ("bpe", "unigram")}.get(kind)
            kind = int if kind is bool else kind
            options.add_argument(flag, help=HELP[field.name], type=kind, choices=choices)
    parser.add_argument("--workers", type=int, default=0, help="processes (one per core)")
    parser.add_argument("--force", action="store_true", help="rebuild an existing folder")
    parser.add_argument("--dry-run", action="store_true", help="only print what would be built")


def read_recipe(args: argparse.Namespace) -> Recipe:
    """Return the recipe that the options describe.

    Raises ValueError for invalid values, and for options that have no effect on the recipe.
    """
    folder, recipe = FOLDERS[args.recipe], FOLDERS[args.recipe].recipe
    files = {"raw"} if folder.rows else {"train", "valid", "test"}
    languages: tuple[str, ...] = ("src", "tgt")
    if recipe.kind == "pairs":
        files, languages = (files, ("languages",)) if folder.rows else ({"table"}, ())
    elif recipe.kind == "language":
        languages = ("lang_code",)
    valued = recipe.options().keys() & HELP.keys()
    for name in (*HELP, *_TEXT):
        value, option = getattr(args, name), f"--{name.replace('_', '-')} ({name.upper()})"
        if value not in (None, "") and name not in {*valued, *files, *languages}:
            hint = did_you_mean(name, valued)
            raise ValueError(f"{option} has no effect on {args.recipe}: leave it out{hint}")
        if value is not None and name in _LEAST and not value >= _LEAST[name]:
            raise ValueError(f"{option} is {value}; the minimum is {_LEAST[name]}")
    changes = {
        name: type(getattr(recipe, name))(getattr(args, name))
        for name in valued
        if getattr(args, name) is not None
    }
    codes = recipe.languages.split()
    if languages == ("languages",):
        codes = (args.languages or "").split() or codes
    elif languages:
        defaults = codes or ["", ""]
        codes = [getattr(args, n) or code for n, code in zip(languages, defaults, strict=False)]
        for name, code in zip(languages, codes, strict=True):
            if not code:
                raise ValueError(f"{name.upper()} (--{name.replace('_', '-')}) is not set")
            if not re.fullmatch(_CODE, code):
                raise ValueError(f"{code!r} is not a language code such as de")
        if len(set(codes)) < len(codes):
            raise ValueError(f"source and target are both {codes[0]!r}; they must differ")
    recipe = dataclasses.replace(recipe, **changes, languages=" ".join(codes))
    if folder.rows:
        folder.check(recipe)
    return recipe


def _own_rows(args: argparse.Namespace, recipe: Recipe) -> list[Row]:
    if args.recipe == "pairs":
        if not args.table or not args.out:
            raise ValueError("TABLE (--table) and OUT (--out) are needed; see --help")
        return read_table(args.table)
    if not args.train or not (args.valid or recipe.hold_out):
        raise ValueError("TRAIN (--train) and VALID (--valid) are needed; see --help")
    languages = tuple(recipe.languages.split())
    rows = [Row("train", languages, args.train)]
    rows += [Row("valid", languages, args.valid)] if args.valid else []
    tests = [prefix for prefix in (args.test or "").split(",") if prefix]
    return rows + [Row(f"test{n or ''}", languages, prefix) for n, prefix in enumerate(tests)]


def run(args: argparse.Namespace) -> int:
    """Build a data folder, or only print its recipe."""
    folder, recipe = FOLDERS[args.recipe], read_recipe(args)
    name = folder.out.format(*recipe.languages.split())
    if recipe.kind == "pairs" and recipe.languages != folder.recipe.languages:
        name += f".{recipe.languages.replace(' ', '-')}"  # the configs need all languages
    out = args.out or ROOT / "data" / name
    rows = [] if folder.rows else _own_rows(args, recipe)
    sources = _sources(args.raw, folder.choices) if args.raw else sources_of(rows)
    if args.dry_run:
        print(f"would build {out} ({args.recipe}, {recipe.languages or 'all languages'}):")
        for name, value in recipe.options().items():
            if name in HELP:
                number = int(value) if isinstance(value, bool) else value
                print(f"  {f'--{name} {number}'.replace('_', '-'):<30}{HELP[name]}")
        print(*(f"  {name}: {path}\n" for name, path in sources.items()), sep="", end="")
        return 0
    with claimed(out):
        workers = args.workers or all_cores()
        if not folder.rows:
            build(recipe, sources, lambda _: rows, out, workers, args.force)
            return 0
        if args.raw:
            raw = args.raw
        elif not args.force and is_complete(out, recipe):
            return 0
        elif folder.corpus:
            raw = ROOT / "data" / "downloads" / folder.corpus
            parts = CORPORA[folder.corpus].parts
            files = fetch(folder.corpus, raw, recipe.languages.split() if parts else ())
            sources = {path.name: path for path in files}
        else:
            raw, sources = SAMPLE, {SAMPLE.name: SAMPLE}
        build(recipe, sources, partial(folder.rows, recipe, raw), out, workers, args.force)
    return 0


def _sources(raw: Path, languages: Sequence[str]) -> dict[str, Path]:
    """Return the archives and text files in the folder `raw` by name, or `raw` if it is a file."""
    if not raw.exists():
        raise ValueError(f"there is no archive or folder {raw}: set RAW (--raw)")
    endings = {*languages, "en", "tgz", "tar"}
    paths = sorted(path for path in raw.rglob("*") if path.is_file())
    used = [p for p in paths if p.name.removesuffix(".gz").rpartition(".")[2] in endings]
    return {str(p.relative_to(raw)): p for p in used} if raw.is_dir() else {raw.name: raw}
