"""The record of a data folder: what it was made from and how, so that a second run knows.

On the standard library alone: finding that there is nothing to do takes no time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fairseq_deepnet.records import SEAL, digest, sealed

_INDEX_HEADER = struct.Struct("<9sQBQ")  # fairseq's mmap index: magic, version, dtype, sentences
_INDEX_MAGIC = b"MMIDIDX\x00\x00"
# "[de] path/train.de: 29000 sents, 400000 tokens, 0.01% replaced (by <unk>)"
_SUMMARY = re.compile(
    r"\[(?P<language>\w+)\] .*/(?P<split>train|valid|test\d*)\.\w+: "
    r"\d+ sents, (?P<tokens>\d+) tokens, (?P<unknown>[\d.e+-]+)% replaced"
)


def test_sets(prefixes: str | None) -> dict[str, str]:
    """The splits "test", "test1", "test2", ... (fairseq's names) of prefixes between commas."""
    names = (prefix for prefix in (prefixes or "").split(",") if prefix)
    return {f"test{index or ''}": prefix for index, prefix in enumerate(names)}


def digests(prefixes: dict[str, str], languages: list[str]) -> dict[str, str]:
    """SHA-256 of every input that is there, by "SPLIT.LANGUAGE"."""
    found = {
        f"{split}.{language}": Path(name)
        for split, prefix in prefixes.items()
        for language in languages
        for name in (f"{prefix}.{language}", f"{prefix}.{language}.gz")
        if Path(name).is_file()
    }
    with ThreadPoolExecutor() as pool:  # hashing and unpacking leave Python's lock to the others
        return dict(zip(found, pool.map(digest, found.values()), strict=True))


def folder_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a folder by its name there; not of corpus.json and logs."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [str(path.relative_to(folder)) for path in paths if path.suffix != ".log"]
    names = [name for name in names if name != "corpus.json"]
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda name: digest(folder / name, packed=False), names)
        return dict(zip(names, found, strict=True))


def differences(recorded: dict[str, object], asked: dict[str, object]) -> list[str]:
    """One phrase for each setting that is not as recorded."""
    return [
        f"{key} was {recorded.get(key)!r}, now {asked.get(key)!r}"
        for key in sorted(recorded.keys() | asked.keys())
        if recorded.get(key) != asked.get(key)
    ]


def state(
    out: Path, settings: dict[str, object], inputs: dict[str, str], force: bool = False
) -> str:
    """The word "complete" if OUT was made with these settings from these inputs, else "build".

    Raises ValueError if OUT was made otherwise (unless `force`) or is no data folder at all. Inputs
    that are gone since are not compared.
    """
    record = out / "corpus.json"
    if out.exists() and not record.is_file():
        raise ValueError(f"{out} exists but has no corpus.json; remove it, or set OUT=FOLDER")
    if record.is_file() and not force:
        settings_before, before = _made_with(record)
        changed = differences(settings_before, settings)
        changed += [f"input {key} changed" for key in inputs if inputs[key] != before.get(key)]
        if changed:
            raise ValueError(
                f"{out} was made with other settings or inputs ({'; '.join(changed)}); "
                "FORCE=1 makes it anew, OUT=FOLDER makes another"
            )
        return "complete"
    return "build"


def _made_with(record: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and inputs as a corpus.json tells them; ValueError for a damaged one."""
    try:
        found = json.loads(record.read_bytes())
        whole = SEAL not in found or sealed(found)[SEAL] == found[SEAL]
        parts = found.get("settings", {}), found.get("inputs", {})
    except (ValueError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole or not all(isinstance(part, dict) for part in parts):
        raise ValueError(f"{record} is damaged; FORCE=1 makes its folder anew")
    return parts


def require(prefixes: dict[str, str], languages: list[str], inputs: dict[str, str]) -> None:
    """Raise ValueError for the first side of a split that is not among the inputs."""
    for split, prefix in prefixes.items():
        for language in languages:
            if f"{split}.{language}" not in inputs:
                raise ValueError(
                    f"no {language} side of {split}: neither {prefix}.{language} nor "
                    f"{prefix}.{language}.gz exists; "
                    f"set {split.rstrip('0123456789').upper()}=PREFIX of such a file"
                )


def prepare(
    part: Path, settings: dict[str, object], inputs: dict[str, str], keep: bool = True
) -> None:
    """Ready the folder that stages work in.

    The finished stages of a killed run stay if it wanted the same (and `keep`); anything else goes.
    """
    plan = json.dumps({"settings": settings, "inputs": inputs}, indent=2) + "\n"
    record = part / "plan.json"
    part.mkdir(parents=True, exist_ok=True)
    if record.is_file() and record.read_text(encoding="utf-8") == plan and keep:
        return
    if not record.is_file() and any(part.iterdir()):
        raise ValueError(f"{part} is in the way and was not made by this script; remove it")
    for entry in part.iterdir():  # not the folder itself, which the caller holds locked
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    record.write_text(plan, encoding="utf-8")


def count_lines(path: Path) -> int:
    """Number of "\\n" in a file."""
    with path.open("rb") as stream:
        return sum(block.count(b"\n") for block in iter(lambda: stream.read(1 << 20), b""))


def count_binarised(path: Path) -> int:
    """Number of sentences in a fairseq index file of the (default) mmap kind."""
    with path.open("rb") as stream:
        header = stream.read(_INDEX_HEADER.size)
    if len(header) < _INDEX_HEADER.size or not header.startswith(_INDEX_MAGIC):
        raise ValueError(f"{path} is no mmap index of fairseq's; do not set --dataset-impl")
    return int(_INDEX_HEADER.unpack(header)[3])


def text_folder(part: Path) -> Path:
    """Where the text is, from which the binarised data are made; encoding may drop pairs of it."""
    later = part / "encoded" / "text"
    return later if later.is_dir() else part / "text"


def check_counts(part: Path, splits: list[str], languages: list[str]) -> dict[str, int]:
    """Lines a split, after checking that text, subwords and binarised data agree on both sides."""
    pair = "-".join(languages)
    lines = {}
    for split in splits:
        counts = {}
        for language in languages:
            name = f"{split}.{language}"
            counts[f"text/{name}"] = count_lines(text_folder(part) / name)
            counts[f"encoded/{name}"] = count_lines(part / "encoded" / name)
            index = f"{split}.{pair}.{language}.idx"
            counts[index] = count_binarised(part / "binarised" / index)
        if len(set(counts.values())) != 1:
            raise ValueError(f"line counts of {split} differ between stages: {counts}; FORCE=1")
        lines[split] = counts[f"text/{split}.{languages[0]}"]
    return lines


def link_folder(source: Path, target: Path) -> None:
    """Make `target` anew with the files of `source`, not copied where links are possible."""
    shutil.rmtree(target, ignore_errors=True)

    def link(origin: str, copy: str) -> None:
        try:
            os.link(origin, copy)
        except OSError:
            shutil.copy2(origin, copy)

    shutil.copytree(source, target, copy_function=link)


def put_in_place(folder: Path, out: Path) -> None:
    """Give a complete folder its name OUT; what was there before goes last."""
    old = out.with_name(out.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    folder.rename(out)
    shutil.rmtree(old, ignore_errors=True)


def read_summaries(log: Path) -> dict[str, dict[str, float]]:
    """Tokens (with one end of sentence a line) and per cent unknown, by "SPLIT.LANGUAGE"."""
    matches = _SUMMARY.finditer(log.read_text(encoding="utf-8"))
    return {
        f"{match['split']}.{match['language']}": {
            "tokens": int(match["tokens"]),
            "unknown_percent": float(match["unknown"]),
        }
        for match in matches
    }


def installed(name: str) -> str:
    """The version of an installed distribution, or "not installed"."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def finish(part: Path) -> dict[str, Any]:
    """Check the counts of every stage, bring the text to the binarised data, and return what
    corpus.json is to hold."""
    plan = json.loads((part / "plan.json").read_text(encoding="utf-8"))
    settings = plan["settings"]
    languages = [settings["source"], settings["target"]]
    cleaning = json.loads((text_folder(part) / "clean.json").read_text(encoding="utf-8"))
    splits = [split for split in cleaning if re.fullmatch(r"train|valid|test\d*", split)]
    lines = check_counts(part, splits, languages)
    link_folder(text_folder(part), part / "binarised" / "text")
    moses = settings.get("tokenisation") == "moses"
    if moses:
        link_folder(part / "encoded" / "tokenised", part / "binarised" / "tokenised")
        # fairseq's four special symbols are in no file
        sizes = [4 + count_lines(part / "binarised" / f"dict.{code}.txt") for code in languages]
        facts = {
            key: settings[key] for key in ("tokenisation", "lowercase", "aggressive", "merges")
        }
        facts |= {
            "vocab_size": max(sizes),
            "vocabularies": dict(zip(languages, sizes, strict=True)),
        }
    else:
        facts = {"vocab_size": settings["vocab_size"]}
    tools = ("sacremoses", "subword-nmt") if moses else ("sentencepiece",)
    return {
        "source": languages[0],
        "target": languages[1],
        "lines": lines,
        "subwords": settings["subwords"],
        "joint": settings["joint"],
        **facts,
        "binarised": read_summaries(part / "binarised" / "preprocess.log"),
        "cleaning": cleaning,
        "settings": settings,
        "inputs": plan["inputs"],
        "files": folder_digests(part / "binarised"),
        "versions": {name: installed(name) for name in (*tools, "fairseq-fixed")},
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def summarise(record: dict[str, Any]) -> str:
    """One line for people: lines kept, vocabulary, length and unknown share of the encoded text."""
    lines = ", ".join(f"{count:,} {split}" for split, count in record["lines"].items())
    sides = [f"train.{record[side]}" for side in ("source", "target")]
    lengths = [record["binarised"][side]["tokens"] / record["lines"]["train"] for side in sides]
    unknown = max(side["unknown_percent"] for side in record["binarised"].values())
    return (
        f"{lines} pairs; {record['vocab_size']:,} {record['subwords']} subwords; "
        f"{lengths[0]:.1f} / {lengths[1]:.1f} tokens a training line; at most {unknown}% unknown"
    )


def _value(text: str) -> object:
    """A setting from the command line: a JSON number or boolean, or else the string itself."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return text
    return value if isinstance(value, bool | int | float) else text


def main(arguments: list[str] | None = None) -> int:
    """`manifest.py state OUT ...` says complete or build; `finish PART` writes corpus.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("state", "finish"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--force", action="store_true", help="build even if OUT is there")
    parser.add_argument("--setting", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--input", action="append", default=[], metavar="SPLIT=PREFIX")
    args = parser.parse_args(arguments)
    try:
        if args.command == "state":
            pairs = (item.split("=", 1) for item in args.setting)
            settings = {key: _value(value) for key, value in pairs}
            prefixes = dict(item.split("=", 1) for item in args.input)
            prefixes |= test_sets(prefixes.pop("test", None))
            languages = [str(settings["source"]), str(settings["target"])]
            inputs = digests(prefixes, languages)
            answer = state(args.folder, settings, inputs, args.force)
            if answer == "build":
                require(prefixes, languages, inputs)
                part = args.folder.with_name(args.folder.name + ".part")
                prepare(part, settings, inputs, keep=not args.force)
            print(answer)
        else:
            record = finish(args.folder)
            text = json.dumps(sealed(record), indent=2) + "\n"
            (args.folder / "binarised" / "corpus.json").write_text(text, encoding="utf-8")
            print(summarise(record))
    except (ValueError, OSError) as error:
        command = os.environ.get("DEEPNET_COMMAND", "preprocess")
        print(f"[{command}] error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
