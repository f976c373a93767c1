"""A tiny binarised corpus, made without a subword model, for tests that need fairseq's data."""

import random
from collections.abc import Iterable
from pathlib import Path

WORDS = [f"w{number}" for number in range(40)]


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    """Write lines to a file, and create its folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def write_text(folder: Path, lines: int, seed: int = 1) -> None:
    """train, valid and test of xx-yy: the target is the source backwards."""
    generator = random.Random(seed)
    for split, count in (("train", lines), ("valid", 12), ("test", 12)):
        sources = [generator.choices(WORDS, k=generator.randint(3, 9)) for _ in range(count)]
        for language, step in (("xx", 1), ("yy", -1)):
            text = (" ".join(words[::step]) for words in sources)
            write_lines(folder / f"{split}.{language}", text)


def fairseq_preprocess(*words: object) -> None:
    """Run fairseq-preprocess in this process, and restore its log handlers."""
    from fairseq.options import get_preprocessing_parser
    from fairseq_cli import preprocess

    handlers = list(preprocess.logger.handlers)
    preprocess.main(get_preprocessing_parser().parse_args([str(word) for word in words]))
    preprocess.logger.handlers[:] = handlers


def binarise(folder: Path, lines: int = 200) -> Path:
    """fairseq's data folder of such a corpus, with one dictionary for both sides."""
    write_text(folder, lines)
    data = folder / "data"
    words = ["--source-lang=xx", "--target-lang=yy", "--joined-dictionary", f"--destdir={data}"]
    words += [f"--{split}pref={folder / split}" for split in ("train", "valid", "test")]
    fairseq_preprocess(*words, "--workers=1")
    return data
