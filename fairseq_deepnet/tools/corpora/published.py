"""Published corpora of one pair: from their archives to raw parallel text.

A corpus is a list of parts: training text line by line, or a dev or test set in SGM or XML. Only
the files that are needed are read out of the archives, which hold many languages. iwslt.py and
wmt.py say what there is.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fairseq_deepnet.files import whole_folder, write_json
from fairseq_deepnet.provenance import fingerprint
from fairseq_deepnet.records import read_record
from fairseq_deepnet.tools.corpora import archive
from fairseq_deepnet.tools.corpora.clean import read_pairs

Sides = tuple[Iterable[str], Iterable[str]]


def plain_text(*sides: Path) -> Sides:
    """Read both sides of training text as they are; a line ends at "\\n" and nowhere else."""
    first, second = (_plain_lines(path) for path in sides)
    return first, second


def _plain_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
        for line in stream:
            yield line.removesuffix("\n")


@dataclass(frozen=True)
class Part:
    """A piece of a corpus.

    Args:
        name: what people call it.
        split: train, valid, test, ...; the parts of a split follow one another.
        archive: the archive that holds it.
        members: its two files within the archive, in the order of the corpus's languages.
        read: what reads the two sides.
        lines: how many pairs it has, as published; None where nobody counted.
    """

    name: str
    split: str
    archive: str
    members: tuple[str, str]
    read: Callable[[Path, Path], Sides]
    lines: int | None = None


@dataclass(frozen=True)
class Corpus:
    """A corpus of two languages, and the subcommand that reads it."""

    about: str | None
    languages: tuple[str, str]
    parts: tuple[Part, ...]

    def locate(self, origins: Sequence[Path]) -> dict[str, Path]:
        """Return the place of every archive, by its name: itself, or a folder of its files.

        `origins` are archives, or folders that hold archives or what was in them. Raises
        ValueError where an archive is nowhere.
        """
        places: dict[str, Path] = {}
        names = dict.fromkeys(part.archive for part in self.parts)
        for name in names:
            files = [file for part in self.parts if part.archive == name for file in part.members]
            for origin in origins:
                if (origin / name).is_file():
                    places[name] = origin / name
                elif (origin.is_file() and origin.name == name) or all(
                    archive.find_in_folder(origin, file) for file in files
                ):
                    places[name] = origin
            if len(names) == len(origins) == 1:
                places.setdefault(name, origins[0])  # by any name; `take` says what it lacks
        if missing := sorted(set(names).difference(places)):
            given = ", ".join(map(str, origins))
            raise ValueError(f"no {', '.join(missing)} in {given}; give the published archives")
        return places

    def extract(self, origins: Sequence[Path], out: Path, hold_out: int = 0) -> dict[str, int]:
        """Write OUT/SPLIT.LANGUAGE for every split; return the pairs of every part, by its name.

        With `hold_out`, every such pair of train that has text on both sides goes to valid
        instead, and those that have not are dropped. OUT appears only when complete; where it was
        made of the same archives, nothing is done.

        Raises:
            ValueError: where the sides of a part differ, where a file is not there, and for an OUT
                that was not made by this function, which is never touched.
        """
        places = self.locate(origins)
        request = {name: fingerprint(place) for name, place in places.items()}
        request["hold_out"] = {"every": hold_out}
        record = out / "extracted.json"
        if record.is_file():
            made = read_record(record, {"from": object, "lines": dict}, "remove its folder")
            if made["from"] == request:
                return dict(made["lines"])
        elif out.exists():
            raise ValueError(
                f"{out} exists and holds something else; remove it or give another folder"
            )
        with whole_folder(out) as part:
            with tempfile.TemporaryDirectory(dir=part) as scratch:
                lines = self._write(places, Path(scratch), part)
            if hold_out:
                lines |= self._hold_out(part, hold_out)
            write_json(part / record.name, {"from": request, "lines": lines})
        return lines

    def _write(self, places: dict[str, Path], scratch: Path, out: Path) -> dict[str, int]:
        """Take the files out of the archives into `scratch`, and write the text into `out`."""
        wanted: dict[str, dict[str, Path]] = {name: {} for name in places}
        files = {}
        for part in self.parts:
            files[part.name] = [scratch / f"{part.name}.{code}" for code in self.languages]
            wanted[part.archive] |= zip(part.members, files[part.name], strict=True)
        with ThreadPoolExecutor(len(wanted)) as pool:  # unpacking leaves Python's lock to others
            list(pool.map(lambda name: archive.take(places[name], wanted[name]), wanted))
        lines = {}
        for part in self.parts:
            sides = part.read(*files[part.name])
            counts = [
                _append(out / f"{part.split}.{language}", side)
                for language, side in zip(self.languages, sides, strict=True)
            ]
            if counts[0] != counts[1]:
                found = " and ".join(
                    f"{n:,} in {code}" for n, code in zip(counts, self.languages, strict=True)
                )
                raise ValueError(f"{part.name} has {found}; fetch {part.archive} again")
            lines[part.name] = counts[0]
            for path in files[part.name]:
                path.unlink()
        return lines

    def _hold_out(self, out: Path, every: int) -> dict[str, int]:
        """Move every such pair of OUT/train to OUT/valid; pairs with an empty side go."""
        train = [out / f"train.{language}" for language in self.languages]
        full = [pair for pair in read_pairs(*train) if all(pair)]
        held = full[every - 1 :: every]
        del full[every - 1 :: every]
        for path in train:
            path.unlink()
        for split, chosen in (("train", full), ("valid", held)):
            for side, language in enumerate(self.languages):
                _append(out / f"{split}.{language}", (pair[side] for pair in chosen))
        return {"train": len(full), "valid": len(held)}

    def describe(self, lines: dict[str, int]) -> list[str]:
        """Return a line for people, and one for every part that is not as long as published."""
        said = [", ".join(f"{part.name} {lines[part.name]:,}" for part in self.parts) + " pairs"]
        said += [
            f"warning: {part.name} has {lines[part.name]:,} pairs, the published one {part.lines:,}"
            for part in self.parts
            if part.lines not in (None, lines[part.name])
        ]
        return said

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options of the corpus's subcommand."""
        parser.description = self.about
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.add_argument(
            "origins", nargs="+", type=Path, help="the archives, or folders of them or their files"
        )
        parser.add_argument("--out", type=Path, required=True, help="folder for the raw text")
        if "valid" not in {part.split for part in self.parts}:
            parser.add_argument(
                "--hold-out", type=int, default=0, metavar="N", help="every Nth pair to valid"
            )

    def run(self, args: argparse.Namespace) -> int:
        """Write the raw text; counts as JSON on standard output."""
        for origin in args.origins:
            if not origin.exists():
                raise FileNotFoundError(f"there is no archive or folder {origin}")
        lines = self.extract(args.origins, args.out, getattr(args, "hold_out", 0))
        print(*self.describe(lines), sep="\n", file=sys.stderr)
        print(json.dumps(lines))
        return 0


def _append(path: Path, lines: Iterable[str]) -> int:
    """Append lines to a file and count them."""
    count = 0
    with path.open("a", encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
        for line in lines:
            stream.write(line + "\n")
            count += 1
    return count
