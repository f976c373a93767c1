"""Moses tokenisation and byte-pair encoding.

sacremoses tokenises text like Moses' tokenizer.perl, including escapes such as `&apos;`.
subword-nmt splits tokens into subwords, separated by `@@ `. The extra "moses" installs both.
"""

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
LONGEST_WORD = 1000  # characters; clean-corpus-n.perl drops pairs with a longer word
_CACHED_WORDS = 500_000  # about 100 MB; subword-nmt's cache has no limit

# tokenizer.perl splits off every final full stop, even in "in the U.S."; sacremoses does not
_FINAL_STOP = re.compile(r"(?<=[^\s.])\.$")


def _extra(module: str) -> Any:
    """Import a module that the extra "moses" installs; raise ValueError if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"{module.partition('.')[0]} is not installed: pip install 'sacremoses>=0.2,<0.3' "
            "'subword-nmt>=0.3.8,<0.4' (the extra 'moses' of setup.py)"
        ) from error


@cache
def _tool(kind: str, language: str, **options: bool) -> Any:
    """Return a sacremoses tool for a language; each tool is loaded once per process."""
    return getattr(_extra("sacremoses"), kind)(lang=language, **options)


def tokenise(line: str, language: str, recipe: Recipe, train: bool = True) -> str:
    """Return the tokens of a line, separated by single spaces.

    As in fairseq's recipes, punctuation is normalised only in training text, and U+2019 is replaced
    with a plain apostrophe only in the valid and test splits.
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
    # after a final .' sacremoses leaves spaces, which the Perl tools trim
    tokens = _FINAL_STOP.sub(" .", " ".join(str(tokens).split()))
    return tokens.lower() if recipe.lowercase else tokens


def detokenise(line: str, language: str) -> str:
    """Convert a line of tokens to text, as Moses' detokenizer.perl does."""
    return str(_tool("MosesDetokenizer", language).detokenize(line.split(), return_str=True))


def remove_bpe(line: str) -> str:
    """Join the subwords of a line into tokens, as `fairseq-generate --remove-bpe` does."""
    return f"{line} ".replace(f"{JOINER} ", "").rstrip()


def why_dropped(source: str, target: str, recipe: Recipe) -> str | None:
    """Return the reason why clean-corpus-n.perl would drop a pair of tokenised lines, or None."""
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
    """Learn byte-pair codes from word counts, write them to `out`, and return their number.

    subword-nmt's learn_bpe.py would learn the same codes from text with these counts. There are
    fewer than `merges` codes if learning runs out of symbol pairs that occur at least twice.
    """
    learner = _extra("subword_nmt.learn_bpe")
    learner.tqdm = iter  # its progress bar would fill the log
    vocabulary = io.StringIO("".join(f"{word} {count}\n" for word, count in sorted(words.items())))
    codes = io.StringIO()
    learner.learn_bpe(vocabulary, codes, merges, is_dict=True)
    out.write_text(codes.getvalue(), encoding="utf-8", newline="\n")
    return codes.getvalue().count("\n") - 1  # the first line is the version


@lru_cache(maxsize=1)
def _load_codes(path: Path, modified: int) -> Any:
    with path.open(encoding="utf-8") as stream:
        return _extra("subword_nmt.apply_bpe").BPE(stream, separator=JOINER)


def encode_lines(lines: Iterable[str], codes: Path) -> list[str]:
    """Split the tokens of each line into subwords."""
    bpe = _load_codes(codes, codes.stat().st_mtime_ns)
    if len(bpe.cache) > _CACHED_WORDS:
        bpe.cache.clear()
    return [str(bpe.process_line(line)) for line in lines]
