"""A tiny binarised corpus, made without a subword model, for tests that need fairseq's data."""

import random
import subprocess
from pathlib import Path

WORDS = [f"w{number}" for number in range(40)]


def write_text(folder: Path, lines: int, seed: int = 1) -> None:
    """train, valid and test of xx-yy: the target is the source backwards."""
    generator = random.Random(seed)
    for split, count in (("train", lines), ("valid", 12), ("test", 12)):
        sources = [generator.choices(WORDS, k=generator.randint(3, 9)) for _ in range(count)]
        for language, step in (("xx", 1), ("yy", -1)):
            text = "".join(" ".join(words[::step]) + "\n" for words in sources)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")


def binarise(folder: Path, lines: int = 200) -> Path:
    """fairseq's data folder of such a corpus, with one dictionary for both sides."""
    write_text(folder, lines)
    data = folder / "data"
    command = ["fairseq-preprocess", "--source-lang", "xx", "--target-lang", "yy", "--workers", "1"]
    for split in ("train", "valid", "test"):
        command += [f"--{split}pref", str(folder / split)]
    command += ["--destdir", str(data), "--joined-dictionary"]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    return data
