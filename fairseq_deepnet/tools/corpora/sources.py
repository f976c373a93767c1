"""The catalogue of corpora that `deepnet download` can fetch: names, mirrors, sizes, checksums.

A checksum stands here only where somebody else published it (`published` says who); where nobody
did, download.py trusts the first download and remembers it. data/README.md tells licences, and
which addresses could not be checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fairseq_deepnet.tools.languages import languages


@dataclass(frozen=True)
class File:
    """One file: its name, the URLs that serve it in the order to try, and what is known of it.

    `size` is in bytes; `languages` are those whose text it holds (none: whatever is asked).
    """

    name: str
    urls: tuple[str, ...]
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None
    published: str = ""
    languages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Corpus:
    """A named set of files; `parts` are its smaller files, if one can ask for some languages."""

    what: str
    files: tuple[File, ...]
    parts: tuple[File, ...] = ()

    def select(self, languages: Iterable[str] = ()) -> tuple[File, ...]:
        """The files to fetch: all of them, or those parts that hold nothing but `languages`.

        Raises ValueError if the corpus has no parts, or no such language.
        """
        wanted = set(languages)
        if not wanted:
            return self.files
        known = sorted({language for part in self.parts for language in part.languages})
        if not known:
            raise ValueError("this corpus comes whole: leave --languages out")
        if unknown := sorted(wanted.difference(known)):
            raise ValueError(f"no language {', '.join(unknown)}; choose from {' '.join(known)}")
        return tuple(part for part in self.parts if wanted.issuperset(part.languages))


_TFDS = "TensorFlow Datasets, url_checksums"
_SACREBLEU = "sacreBLEU, dataset/__init__.py"
_FAIR = "https://dl.fbaipublicfiles.com"


def _multi30k() -> tuple[File, ...]:
    places = (
        "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw",
        "https://cdn.jsdelivr.net/gh/multi30k/dataset@master/data/task1/raw",
    )
    return tuple(
        File(
            name := f"{split}.{language}.gz",
            tuple(f"{place}/{name}" for place in places),
            languages=(language,),
        )
        for split in ("train", "val", "test_2016_flickr")
        for language in ("de", "en", "fr", "cs")
    )


_WMT13 = ("https://www.statmt.org/wmt13", "http://www.statmt.org/wmt13")
_WMT17 = tuple(f"{scheme}://data.statmt.org/wmt17/translation-task" for scheme in ("https", "http"))


def _at(places: Iterable[str], name: str) -> tuple[str, ...]:
    return tuple(f"{place}/{name}" for place in places)


_WMT17_FILES = (
    File(
        "training-parallel-europarl-v7.tgz",
        _at(_WMT13, "training-parallel-europarl-v7.tgz"),
        size=657632379,
        sha256="0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
        published=_TFDS,
    ),
    File(
        "training-parallel-commoncrawl.tgz",
        _at(_WMT13, "training-parallel-commoncrawl.tgz"),
        size=918311367,
        sha256="c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
        published=_TFDS,
    ),
    File(
        "training-parallel-nc-v12.tgz",
        _at(_WMT17, "training-parallel-nc-v12.tgz"),
        size=168591139,
        sha256="2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2",
        published=_TFDS,
    ),
    File("dev.tgz", _at(_WMT17[:1], "dev.tgz")),
    File(
        "test.tgz",
        _at(_WMT17, "test.tgz"),
        md5="86a1724c276004aa25455ae2a04cef26",
        published=_SACREBLEU,
    ),
)

_OPUS100 = ("https://object.pouta.csc.fi/OPUS-100/v1.0",)

OPUS100_LANGUAGES: Final = tuple(
    code for code, language in languages().items() if language.opus100 is not None
)
"""The 99 languages of OPUS-100 besides English, by the codes of its files."""


def opus100_pair(language: str) -> str:
    """The name of the pair of a language with English: the codes in alphabetical order."""
    return "-".join(sorted((language, "en")))


def _opus100_parts() -> tuple[File, ...]:
    names = {x: f"opus-100-corpus-{opus100_pair(x)}-v1.0.tar.gz" for x in OPUS100_LANGUAGES}
    pairs = (File(name, _at(_OPUS100, name), languages=(x,)) for x, name in names.items())
    # All zero-shot pairs are in one small archive, which comes with every choice of languages.
    zero_shot = "opus-100-corpus-zeroshot-v1.0.tar.gz"
    return *pairs, File(zero_shot, _at(_OPUS100, zero_shot))


CATALOGUE: Final[dict[str, Corpus]] = {
    "multi30k": Corpus(
        "Multi30k captions in German, English, French and Czech (12 files, 3 MB)",
        _multi30k(),
        _multi30k(),
    ),
    "iwslt14": Corpus(
        "IWSLT 2014 German-English: TED talks (19 MB)",
        (
            # wit3's file had 19,982,877 bytes; whether fairseq's copy has as many is not known.
            File(
                "de-en.tgz",
                (
                    f"{_FAIR}/fairseq/data/iwslt14/de-en.tgz",
                    "https://wit3.fbk.eu/archive/2014-01/texts/de/en/de-en.tgz",
                ),
            ),
        ),
    ),
    "wmt17": Corpus(
        "WMT 2017 English-German: Europarl, Common Crawl, News Commentary, test sets (1.8 GB)",
        _WMT17_FILES,
    ),
    "opus100": Corpus(
        "OPUS-100: English with 99 languages and 15 zero-shot pairs; --languages takes some pairs",
        (File("opus-100-corpus-v1.0.tar.gz", _at(_OPUS100, "opus-100-corpus-v1.0.tar.gz")),),
        _opus100_parts(),
    ),
    "flores101": Corpus(
        "Flores-101: dev and devtest in 101 languages, and the sentencepiece model of spBLEU",
        (
            File(
                "flores101_dataset.tar.gz",
                (f"{_FAIR}/flores101/dataset/flores101_dataset.tar.gz",),
            ),
            File(
                "sacrebleu_tokenizer_spm.model",
                (f"{_FAIR}/fairseq/models/flores/sacrebleu_tokenizer_spm.model",),
            ),
        ),
    ),
    "ted": Corpus(
        "Multilingual TED talks in 60 languages (352 MB)",
        (
            File(
                "ted_talks.tar.gz",
                ("http://phontron.com/data/ted_talks.tar.gz",),
                size=352222045,
                sha256="03457b9ebc6d60839f1a48c5a03c940266aff78b81fcda4c6d9e2a5a7fb670ae",
                published=_TFDS,
            ),
        ),
    ),
    "m2m100": Corpus(
        "M2M-100's sentencepiece model, dictionaries and language list (no weights)",
        tuple(
            File(name, (f"{_FAIR}/m2m_100/{name}",))
            for name in (
                "spm.128k.model",
                "data_dict.128k.txt",
                "model_dict.128k.txt",
                "language_pairs_small_models.txt",
            )
        ),
    ),
}
"""What can be downloaded, by the name that `deepnet download` takes."""
