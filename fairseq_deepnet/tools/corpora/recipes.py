"""Where the text of published corpora comes from: RAW, or a download; for `deepnet preprocess`.

A check refuses what the user set before anything is fetched. Values are those of the options, by
name in small letters.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Final

from fairseq_deepnet.files import ROOT, say
from fairseq_deepnet.tools.corpora import download as downloader
from fairseq_deepnet.tools.corpora import iwslt, wmt
from fairseq_deepnet.tools.corpora import opus100 as unpacker
from fairseq_deepnet.tools.corpora.builder import Row, rows_of
from fairseq_deepnet.tools.corpora.text import find_side, raw_lines
from fairseq_deepnet.tools.corpora.text_folders import read_table

_LINES: Final = {"train": 29_000, "valid": 1014, "test": 1000}
_PUBLIC: Final = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
"""Lines of Multi30k's splits, and their names in the repository multi30k/dataset."""


def call(command: ModuleType, *words: str) -> list[str]:
    """Run a subcommand of `deepnet` here, and return the lines that it prints.

    Raises SystemExit with its status where that is not 0: it has said why.
    """
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = command.run(parser.parse_args(words))
    if status:
        raise SystemExit(status)
    return printed.getvalue().splitlines()


def download(corpus: str, value: SimpleNamespace, languages: Sequence[str] = ()) -> list[str]:
    """Download a corpus into DOWNLOADS and return its files."""
    folder = value.downloads or str(ROOT / "data" / "downloads" / corpus)
    words = [corpus, "--out", folder, "--jobs", os.environ.get("JOBS") or "4"]
    return call(downloader, *words, *(["--languages", *languages] if languages else []))


def _languages(value: SimpleNamespace) -> tuple[str, ...]:
    return (value.lang_code,) if hasattr(value, "lang_code") else (value.src, value.tgt)


def check_multi30k(value: SimpleNamespace) -> None:
    """Refuse a language that Multi30k has not."""
    _refuse_foreign(*_languages(value))


def _refuse_foreign(*languages: str) -> None:
    for language in languages:
        if language not in ("de", "en", "fr", "cs"):
            raise ValueError(
                f"there is no language {language!r} in Multi30k; it has de, en, fr and cs"
            )


def check_multi30k_languages(value: SimpleNamespace) -> None:
    """Raise ValueError where no pair with English can be made of LANGS."""
    languages = value.langs.split()
    if len(languages) < 2 or "en" not in languages or len(set(languages)) < len(languages):
        raise ValueError(
            f"LANGS is {value.langs!r}; two or more languages are needed, each once, en among them,"
            " separated by spaces: cs de en"
        )
    _refuse_foreign(*languages)


def multi30k(value: SimpleNamespace, *languages: str) -> list[Row]:
    """Return the rows of a pair, one language or those named, after counting their lines."""
    languages = languages or _languages(value)
    folder = Path(value.raw or value.downloads or ROOT / "data" / "downloads" / "multi30k")
    if not value.raw:
        download("multi30k", value, languages)
    if not folder.is_dir():
        raise ValueError(f"RAW={folder} is not a folder; without RAW it is downloaded")
    rows = []
    for split, lines in _LINES.items():
        prefix = _prefix(folder, split, languages[0])
        rows.append(Row(split, languages, prefix))
        for language in languages:
            try:
                count = sum(1 for _ in raw_lines(find_side(prefix, language)))
            except FileNotFoundError as error:
                raise FileNotFoundError(
                    f"there is no {prefix}.{language}, plain or .gz; fetch the repository"
                    " multi30k/dataset from GitHub and set RAW=its folder"
                ) from error
            if count != lines:
                raise ValueError(
                    f"{prefix}.{language} has {count} lines instead of {lines}; fetch it again"
                )
    return rows


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


def multi30k_pairs(value: SimpleNamespace) -> list[Row]:
    """Return the rows of several languages: pairs with English are trained, all are tested."""
    languages = value.langs.split()
    rows = multi30k(value, *languages)
    pairs = [(one, other) for one in languages for other in languages if one < other]
    return [
        row._replace(pair=pair)
        for pair in pairs
        for row in rows
        if "en" in pair or row.split == "test"
    ]


def _raw_text(value: SimpleNamespace, corpus: str, *options: str) -> Path:
    """Return OUT.raw after taking the text out of a corpus's archives, unless OUT is there."""
    folder = value.out.with_name(f"{value.out.name}.raw")
    if value.force or not (value.out / "corpus.json").is_file():
        files = [value.raw]
        if not value.raw:
            say("downloading")
            files = download(corpus, value)
        say("reading the archives")
        call({"iwslt14": iwslt, "wmt17": wmt}[corpus], *files, "--out", str(folder), *options)
    return Path(folder)


def forget_raw_text(out: Path) -> None:
    """Remove OUT.raw, unless somebody else made it."""
    folder = out.with_name(f"{out.name}.raw")
    if (folder / "extracted.json").is_file():
        shutil.rmtree(folder)


def _check_published(value: SimpleNamespace, wanted: Sequence[str], must: str) -> None:
    if f"{value.src} {value.tgt}" not in wanted:
        raise ValueError(f"SRC and TGT are {value.src!r} and {value.tgt!r}; {must}")
    if value.raw and not Path(value.raw).exists():
        raise ValueError(f"there is no archive or folder RAW={value.raw}")


def check_iwslt14(value: SimpleNamespace) -> None:
    """Refuse other languages than German and English, and RAW that is not there."""
    _check_published(value, ("de en", "en de"), "they must be de and en")


def check_wmt17(value: SimpleNamespace) -> None:
    """Refuse another direction than English to German, and RAW that is not there."""
    _check_published(value, ("en de",), "this recipe is en to de")


def iwslt14(value: SimpleNamespace) -> list[Row]:
    """Return the rows of IWSLT 2014 without valid, which is held out of its tokens."""
    text = _raw_text(value, "iwslt14")
    return rows_of((value.src, value.tgt), f"{text}/train", None, f"{text}/test")


def iwslt14_raw(value: SimpleNamespace) -> list[Row]:
    """Return the rows of IWSLT 2014; valid is held out of its raw pairs."""
    text = _raw_text(value, "iwslt14", "--hold-out", str(value.hold_out))
    return rows_of((value.src, value.tgt), f"{text}/train", f"{text}/valid", f"{text}/test")


def wmt17(value: SimpleNamespace) -> list[Row]:
    """Return the rows of WMT 2017 without newstest2013; test1 is newstest2017."""
    text = _raw_text(value, "wmt17")
    return rows_of((value.src, value.tgt), f"{text}/train", None, f"{text}/test,{text}/test1")


def wmt17_raw(value: SimpleNamespace) -> list[Row]:
    """Return the rows of WMT 2017; valid is newstest2013, test1 newstest2017."""
    text = _raw_text(value, "wmt17")
    tests = f"{text}/test,{text}/test1"
    return rows_of((value.src, value.tgt), f"{text}/train", f"{text}/valid", tests)


def check_opus100(value: SimpleNamespace) -> None:
    """Refuse what is no language, and RAW that is not there; `chosen` names OUT."""
    value.languages = sorted({code for code in (value.langs or "").split() if code != "en"})
    for code in value.languages:
        if not re.fullmatch("[a-z]{2,3}", code):
            raise ValueError(f"LANGS has {code!r}; it must be codes such as: de fr nl")
    if value.langs and not value.languages:
        raise ValueError(f"LANGS is {value.langs!r}; name a language besides English")
    if value.raw and not Path(value.raw).exists():
        raise ValueError(f"RAW={value.raw} is neither a folder nor an archive")
    codes = "-".join(value.languages)
    value.chosen = f".{codes}" if codes else ""
    if len(codes) > 60:
        value.chosen = f".{len(value.languages)}-languages"


def opus100(value: SimpleNamespace) -> list[Row]:
    """Unpack what is needed; return the rows of OUT.pairs.tsv, which is written first."""
    raw = value.raw
    if not raw:
        raw = value.downloads or str(ROOT / "data" / "downloads" / "opus100")
        whole = (Path(raw) / "opus-100-corpus-v1.0.tar.gz").is_file()  # it holds the pairs, too
        download("opus100", value, [] if whole else value.languages)
    table = value.out.with_name(f"{value.out.name}.pairs.tsv")
    words = [raw, "--table", str(table), "--unpacked", str(value.unpacked)]
    words += ["--workers", str(value.workers)]
    if value.overlap:
        words += ["--overlap", str(value.out.with_name(f"{value.out.name}.overlap.json"))]
    if value.languages:
        words += ["--languages", *value.languages]
    for line in call(unpacker, *words):
        say(line)
    return read_table(table)
