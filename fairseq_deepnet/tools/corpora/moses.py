"""Moses tokens and byte-pair codes.

Tokens are those of Moses' tokenizer.perl with its escapes (`&apos;`, `&#91;`), by sacremoses;
subwords are those of subword-nmt (`@@ ` joins). The extra "moses" installs both.
"""

from __future__ import annotations

import importlib
import io
import re
import unicodedata
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from fairseq_deepnet.tools.corpora.text import Recipe

JOINER = "@@"
LONGEST_WORD = 1000
"""Number of characters; clean-corpus-n.perl drops pairs with a longer word."""
_CACHED_WORDS = 500_000  # of subword-nmt, which never forgets a word; about 100 MB

_SPACES = re.compile(r"\s+")
# tokenizer.perl splits the full stop from the last word even of "in the U.S."; sacremoses keeps it
_FINAL_STOP = re.compile(r"(?<=[^\s.])\.$")


def _extra(module: str) -> Any:
    """Return a module of the extra "moses"; ValueError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"{module.partition('.')[0]} is not installed: pip install 'sacremoses>=0.2,<0.3' "
            "'subword-nmt>=0.3.8,<0.4' (the extra 'moses' of setup.py)"
        ) from error


@cache
def _tool(kind: str, language: str, **options: bool) -> Any:
    """Return a tool of sacremoses for a language, loaded once per process."""
    return getattr(_extra("sacremoses"), kind)(lang=language, **options)


def tokenise(line: str, language: str, recipe: Recipe, train: bool = True) -> str:
    """Return the tokens of a line, separated by single spaces.

    As in fairseq's recipes, punctuation is normalised only in training text, and apostrophes only
    in other text.
    """
    is_wmt = recipe.follows == "wmt14"
    if recipe.follows and not train:
        line = line.replace("\u2019", "'")
    if is_wmt and train:  # normalize-punctuation.perl and remove-non-printing-char.perl
        line = _tool("MosesPunctNormalizer", language, perl_parity=True).normalize(line)
        line = "".join(" " if unicodedata.category(c)[0] == "C" else c for c in line)
    tokens = _tool("MosesTokenizer", language).tokenize(
        line, aggressive_dash_splits=is_wmt, return_str=True
    )
    # the Perl tools trim what the tokeniser leaves after a final .'
    tokens = _FINAL_STOP.sub(" .", _SPACES.sub(" ", str(tokens)).strip())
    return tokens.lower() if recipe.lowercase else tokens


def detokenise(line: str, language: str) -> str:
    """Return the text of a line of tokens, as detokenizer.perl writes it."""
    tool = _tool("MosesDetokenizer", language)
    return str(tool.detokenize(line.split(), return_str=True))


def remove_bpe(line: str) -> str:
    """Return the tokens of subwords, as `fairseq-generate --remove-bpe`."""
    return f"{line} ".replace(f"{JOINER} ", "").rstrip()


def decode_line(line: str, language: str) -> str:
    """Return the text of a line of subwords."""
    return detokenise(remove_bpe(line), language)


def why_dropped(source: str, target: str, recipe: Recipe) -> str | None:
    """Return why a pair of lines of tokens is dropped, or None, by clean-corpus-n.perl's rules."""
    sides = source.split(), target.split()
    counts = sorted(len(side) for side in sides)
    if counts[0] == 0:
        return "empty"
    if counts[1] > recipe.max_words:
        return "too long"
    if counts[1] / counts[0] > recipe.max_ratio:
        return "length ratio"
    if any(len(word) > LONGEST_WORD for side in sides for word in side):
        return "long word"
    return None


def learn_codes(words: dict[str, int], merges: int, out: Path) -> int:
    """Learn `merges` byte-pair codes from words and their counts; write OUT, return their number.

    The result is subword-nmt's learn_bpe.py on the text with these words. Fewer codes are learnt
    where no pair of symbols is left that occurs twice; ValueError where there is no pair at all.
    """
    learner = _extra("subword_nmt.learn_bpe")
    learner.tqdm = iter  # its progress bar would fill the log
    if not any(len(word) > 1 for word in words):
        raise ValueError("there is no text to learn byte-pair codes from")
    vocabulary = io.StringIO("".join(f"{word} {count}\n" for word, count in sorted(words.items())))
    codes = io.StringIO()
    learner.learn_bpe(vocabulary, codes, merges, is_dict=True)
    out.write_text(codes.getvalue(), encoding="utf-8", newline="\n")
    return codes.getvalue().count("\n") - 1  # the first line is the version


@lru_cache(maxsize=1)
def _codes_of_this_process(path: Path, modified: int) -> Any:
    with path.open(encoding="utf-8") as stream:
        return _extra("subword_nmt.apply_bpe").BPE(stream, separator=JOINER)


def encode_lines(lines: Iterable[str], codes: Path) -> list[str]:
    """Return lines of tokens as subwords."""
    if not codes.is_file():
        raise FileNotFoundError(f"there are no byte-pair codes at {codes}")
    bpe = _codes_of_this_process(codes, codes.stat().st_mtime_ns)
    if len(bpe.cache) > _CACHED_WORDS:
        bpe.cache.clear()
    return [str(bpe.process_line(line)) for line in lines]
