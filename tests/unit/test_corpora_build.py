"""Lines of text, data folders of every kind, failed builds that resume, and bad text."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.tools.corpora import binarise, build, text
from fairseq_deepnet.tools.corpora.build import Row, claimed, folder_digests, sources_of
from fairseq_deepnet.tools.corpora.folder import DataFolder
from fairseq_deepnet.tools.corpora.text import Recipe, count_words, find_side, normalise, read_lines
from tests.support.corpus import write_lines

SMALL = Recipe(languages="eo ia", vocab_size=60)
MOSES = dataclasses.replace(SMALL, kind="moses", joint=False, merges=20, max_ratio=2, max_words=20)
RECIPES = {
    "pair": SMALL,
    "separate": dataclasses.replace(SMALL, joint=False, vocab_size=40),
    "language": Recipe(kind="language", languages="eo", vocab_size=50),
    "pairs": Recipe(kind="pairs", vocab_size=90, sample=150),
    "moses": MOSES,
    "by subwords": dataclasses.replace(MOSES, hold_out=7, follows="wmt14", max_words=30),
}


def write(folder: Path, split: str, **sides: list[str]) -> str:
    for language, lines in sides.items():
        write_lines(folder / f"{split}.{language}", lines)
    return str(folder / split)


def sentences(count: int, seed: int = 3) -> list[str]:
    generator = random.Random(seed)
    words = ["la", "hundo", "kuras", "rapide", "en", "granda", "ĝardeno"]
    return [" ".join(generator.choices(words, k=generator.randint(3, 8))) for _ in range(count)]


def rows_of(folder: Path, kind: str) -> list[Row]:
    if kind == "pairs":
        ia, io = ("eo", "ia"), ("eo", "io")
        splits = {"train": [ia, io], "valid": [ia], "test": [("ia", "io")]}
    else:
        pairs = [("eo",) if kind == "language" else ("eo", "ia")]
        splits = {"train": pairs, "test": pairs}
        if kind != "by subwords":
            splits["valid"] = pairs
    return [Row(split, pair, f"{folder}/{split}") for split in splits for pair in splits[split]]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    for split, count in (("train", 120), ("valid", 9), ("test", 8)):
        lines = sentences(count, count)
        write(folder, split, eo=lines, ia=[line.upper() for line in lines], io=lines[::-1])
    return folder


def build_one(
    recipe: Recipe, rows: list[Row], out: Path, force: bool = False, workers: int = 1
) -> None:
    with claimed(out):
        build.build(recipe, sources_of(rows), lambda _: rows, out, workers, force)


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


@pytest.mark.parametrize("kind", RECIPES)
def test_a_folder_does_not_depend_on_the_number_of_workers(
    kind: str, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, rows, out = RECIPES[kind], rows_of(raw, kind), tmp_path / "out"
    (tmp_path / "out.part").mkdir()
    (tmp_path / "out.part" / ".corpus.json.0.part").touch()  # as after kill -9
    build_one(recipe, rows, out)
    assert DataFolder.open(out).record["files"] == folder_digests(out)
    assert {path.name for path in tmp_path.iterdir()} == {"raw", "out"}
    monkeypatch.setattr(text.chunks, "__defaults__", (11,))
    build_one(recipe, rows, tmp_path / "again", workers=2)
    assert folder_digests(tmp_path / "again") == folder_digests(out)


@pytest.mark.parametrize("kind", ["pair", "pairs", "by subwords"])
def test_a_failed_build_resumes_to_the_same_bytes(
    kind: str, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, rows, force = RECIPES[kind], rows_of(raw, kind), kind == "pair"
    build_one(recipe, rows, tmp_path / "whole")
    out = tmp_path / "out"
    if force:
        build_one(dataclasses.replace(recipe, max_words=19), rows, out)
    with monkeypatch.context() as broken:

        def fail(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        broken.setattr(binarise, "binarise", fail)
        with pytest.raises(OSError, match="No space"):
            build_one(recipe, rows, out, force)
    assert out.exists() is force
    (tmp_path / "out.part" / ".corpus.json.0.part").touch()  # as after kill -9
    monkeypatch.setattr(build, "_clean_chunk", fail)  # the text is clean already
    build_one(recipe, rows, out, force)
    assert folder_digests(out) == folder_digests(tmp_path / "whole")


def test_a_complete_build_that_was_not_renamed_starts_again(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, out = rows_of(raw, "pair"), tmp_path / "out"
    with monkeypatch.context() as broken:
        broken.setattr(build, "put_folder_in_place", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_one(SMALL, rows, out)
    build_one(SMALL, rows, out)
    assert DataFolder.open(out)


def test_another_recipe_or_text_is_refused_unless_forced(raw: Path, tmp_path: Path) -> None:
    rows, out = rows_of(raw, "pair"), tmp_path / "out"
    for _ in range(2):  # the second time there is nothing to do
        build_one(SMALL, rows, out)
    other = dataclasses.replace(SMALL, vocab_size=61)
    with pytest.raises(ValueError, match=r"vocab_size was 60, now 61.*FORCE=1"):
        build_one(other, rows, out)
    with pytest.raises(ValueError, match="corpus was '', now 'multi30k'"):
        build_one(dataclasses.replace(SMALL, corpus="multi30k"), rows, out)
    build_one(other, rows, out, force=True)
    assert DataFolder.open(out).record["vocab_size"] == 61
    with pytest.raises(ValueError, match=r"train\.eo is in .*raw, which would be replaced"):
        build_one(SMALL, rows, raw, force=True)
    write(raw, "valid", eo=["alia"], ia=["ALIA"])
    with pytest.raises(ValueError, match=r"other text: valid\.eo-ia\.eo, valid\.eo-ia\.ia\)"):
        build_one(other, rows, out)
    swapped = [row._replace(languages=row.languages[::-1]) for row in rows]
    with pytest.raises(ValueError, match=r"other text: [^,]*, [^,]*, [^,]* and 9 more\)"):
        build_one(other, swapped, out)
    with pytest.raises(FileNotFoundError, match=r"no .*trian\.eo\[\.gz\]; similar .*: train\.eo"):
        build_one(other, [rows[0]._replace(prefix=f"{raw}/trian"), *rows[1:]], out)


def test_a_folder_without_a_record_is_never_replaced(raw: Path, tmp_path: Path) -> None:
    rows = rows_of(raw, "pair")
    for name in ("out", "other.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").touch()
    for force in (False, True):
        for name in ("out", "other"):
            with pytest.raises(ValueError, match=r"has no corpus\.json; remove it"):
                build_one(SMALL, rows, tmp_path / name, force)
    (tmp_path / "new.lock").touch()
    with claimed(tmp_path / "new"), pytest.raises(ValueError, match="another run"):
        build_one(SMALL, rows, tmp_path / "new")
    assert (tmp_path / "new.lock").exists()


def test_a_pair_records_its_lines_and_the_reasons_for_dropping_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, clean = tmp_path / "raw", sentences(40)
    odd = [("", "x"), ("a", " "), ("a", "b c d e f g h"), ("x " * 300, "y " * 300)]
    train = [*zip(clean, clean, strict=True), *odd]
    write(raw, "train", eo=[a for a, _ in train], ia=[b for _, b in train])
    valid = ["  two  spaces ", "cafe\u0301", "a\u2028b", "", "a\rb"]
    write(raw, "valid", eo=valid, ia=["y"] * len(valid))
    rows = [Row(split, ("eo", "ia"), f"{raw}/{split}") for split in ("train", "valid")]
    build_one(SMALL, rows, tmp_path / "out")
    summary = "out: 40 train, 5 valid lines (4 dropped); 60 bpe subwords\n"
    assert capsys.readouterr().err.endswith(summary)
    record = DataFolder.open(tmp_path / "out").record
    assert record["lines"] == {"train": 40, "valid": len(valid)}
    dropped = {"empty": 2, "length ratio": 1, "too long": 1}
    assert record["cleaning"]["train"]["dropped"] == dropped
    # valid text changes only at line ends inside a line
    assert lines_of(tmp_path / "out" / "text" / "valid.eo") == [*valid[:-1], "a b"]


def test_text_of_one_language_loses_blank_lines(raw: Path, tmp_path: Path) -> None:
    write(raw, "valid", eo=["unu", "", " "])
    build_one(RECIPES["language"], rows_of(raw, "language"), tmp_path / "out")
    lines = DataFolder.open(tmp_path / "out").record["lines"]
    assert lines == {"train": 120, "test": 8, "valid": 1}


def test_many_pairs_have_both_directions_and_validation_text(raw: Path, tmp_path: Path) -> None:
    build_one(RECIPES["pairs"], rows_of(raw, "pairs"), tmp_path / "out")
    folder = DataFolder.open(tmp_path / "out")
    assert folder.languages == ["eo", "ia", "io"]
    assert lines_of(tmp_path / "out" / "languages.txt") == folder.languages
    assert list(map(str, folder.directions("test"))) == ["ia-io", "io-ia"]
    # the first of every 1,000 training pairs of a pair without a validation set
    assert folder.record["lines"]["train"] == {"eo-ia": 120, "eo-io": 119}
    assert folder.record["lines"]["valid"] == {"eo-io": 1, "eo-ia": 9}
    assert lines_of(tmp_path / "out/text/valid.eo-io.eo") == lines_of(raw / "train.eo")[:1]
    assert sum(folder.record["sample"].values()) <= 150


def test_every_nth_clean_moses_pair_is_held_out(tmp_path: Path) -> None:
    raw, out, numbers = tmp_path / "raw", tmp_path / "out", [n for n in range(26) if n != 3]
    german, english = (
        [f"{word} {n}, {yes}!" for n in range(26)]
        for word, yes in (("Zeile", "ja"), ("Line", "yes"))
    )
    german[3], english[3] = "Eine sehr, sehr lange Zeile hier.", "Short."
    write(raw, "train", de=[*german, "Leer."], en=[*english, ""])
    write(raw, "test", de=["Ein’s."], en=["It’s."])
    recipe = dataclasses.replace(
        MOSES, languages="de en", hold_out=5, lowercase=True, follows="iwslt14", max_ratio=1.5
    )
    rows = [Row(split, ("de", "en"), f"{raw}/{split}") for split in ("train", "test")]
    build_one(recipe, rows, out)
    rest = [n for index, n in enumerate(numbers, start=1) if index % 5]
    assert lines_of(out / "text" / "valid.en") == [f"Line {n}, yes!" for n in numbers[4::5]]
    assert lines_of(out / "tokenised" / "valid.de") == [f"zeile {n} , ja !" for n in numbers[4::5]]
    assert lines_of(out / "text" / "train.de") == [f"Zeile {n}, ja!" for n in rest]
    assert lines_of(out / "tokenised" / "test.en") == ["it &apos;s ."]
    assert lines_of(out / "text" / "test.en") == ["It’s."]
    cleaning = DataFolder.open(out).record["cleaning"]
    assert cleaning["train"]["dropped"] == {"empty": 1, "length ratio": 1}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("valid.eo", b"a\n", r"differ in length: .*valid\.eo has 1 lines.*valid\.ia has 9"),
        ("test.ia", b"Gr\xfc\xdfe\n" * 8, r"test\.ia, line 1: not valid UTF-8"),
        ("test.ia", b"\xff\xfea\0\n\0" + b"\n" * 7, r"iconv -f UTF-16 -t UTF-8"),
        ("train.eo", b"\n" * 120, r"remains for train \(120 lines; dropped: 120 empty\)"),
        ("valid.eo", None, r"there is no .*valid\.eo\[\.gz\]"),
    ],
)
def test_bad_text_is_refused_in_one_line_and_leaves_no_folder(
    name: str, content: bytes | None, message: str, raw: Path, tmp_path: Path
) -> None:
    (raw / name).unlink()
    if content is not None:
        (raw / name).write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        build_one(SMALL, rows_of(raw, "pair"), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_a_dry_run_lists_the_files_and_refuses_missing_ones(
    raw: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"pair --src eo --tgt ia --train {raw}/train --valid {raw}/valid --dry-run".split()
    assert cli.main(["preprocess", *words]) == 0
    assert f"  valid.eo-ia.ia: {raw}/valid.ia\n" in capsys.readouterr().out
    (raw / "train.eo").unlink()
    assert cli.main(["preprocess", *words]) == 2
    assert f"there is no {raw}/train.eo[.gz]" in capsys.readouterr().err
    assert cli.main(["preprocess", "opus100", "--languages=de fr", "--dry-run"]) == 0
    assert "/data/opus100.de-fr (" in capsys.readouterr().out


@pytest.mark.parametrize("recipe", ["multi30k", "opus100", "iwslt14"])
def test_a_dry_run_prints_options_that_can_be_given(
    recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["preprocess", recipe, "--dry-run"]) == 0
    plan = capsys.readouterr().out
    lines = [line.split(maxsplit=2) for line in plan.splitlines()[1:]]
    assert lines
    words = [word for option, value, _ in lines for word in (option, value)]
    assert cli.main(["preprocess", recipe, *words, "--dry-run"]) == 0
    assert capsys.readouterr().out == plan


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "text"
    odd = ["a\u2028b", "c\x85d", "e\x0bf\x0cg", "h\ri", "j\x1ck", "\ufefftwo"]
    path.write_bytes("".join(f"{line}\r\n" for line in ["\ufeffone", *odd]).encode() + b"three")
    assert list(read_lines(path)) == ["one", *odd, "three"]


def test_a_side_is_plain_or_gzipped_but_not_both(tmp_path: Path) -> None:
    prefix = tmp_path / "train"
    packed = tmp_path / "train.eo.gz"
    packed.touch()
    assert find_side(prefix, "eo") == packed
    (tmp_path / "train.eo").touch()
    with pytest.raises(ValueError, match=r"both .* exist"):
        find_side(prefix, "eo")


def test_normalisation_composes_letters_and_leaves_single_spaces() -> None:
    assert normalise(" cafe\u0301\t\u00a0au\u2028lait\x07 \ufeff") == "café au lait"
    assert normalise("a\u00adb") == "ab"
    assert normalise("u\x00\u0308ber") == "über"
    assert normalise("m² ½ ﬁ Ａ…") == "m² ½ ﬁ Ａ…"  # NFC: letters that mean more stay


@pytest.mark.parametrize(
    ("line", "words"),
    [("", 0), ("Sie ist da.", 3), ("我喜欢猫", 4), ("GPT 是模型", 4), ("ฉันรักแมว", 3), ("𠮷野", 2)],
)
def test_words_are_counted_even_in_scripts_without_spaces(line: str, words: int) -> None:
    assert count_words(line) == words
