"""A data folder of many pairs: its table, its subword sample, its text, fairseq reading it."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from fairseq.data import Dictionary, data_utils

from fairseq_deepnet import cli
from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.corpora.subwords import allot, load_model, spread
from fairseq_deepnet.tools.corpora.text_folders import read_table
from tests.support.runs import SENTENCES

OPTIONS = (
    *("--vocab-size", "60", "--temperature", "1", "--workers", "1", "--max-ratio", "9"),
    *("--character-coverage", "1.0"),
)


def write(prefix: Path, **sides: list[str]) -> Path:
    """PREFIX.LANGUAGE for every language."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for language, lines in sides.items():
        Path(f"{prefix}.{language}").write_text(
            "".join(f"{line}\n" for line in lines), encoding="utf-8"
        )
    return prefix


def write_table(path: Path, rows: list[tuple[str, str, str, Path]]) -> Path:
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """en-xx and en-yy are trained (yy has no valid set); xx-yy is zero-shot."""
    raw = tmp_path / "raw"
    up = [line.upper() for line in SENTENCES]
    train = write(raw / "train", en=SENTENCES * 3, xx=up * 3, yy=SENTENCES[::-1] * 3)
    valid = write(raw / "valid", en=SENTENCES, xx=up)
    test = write(raw / "test", en=SENTENCES, xx=[*up[:3], ""], yy=["a\rb", *up[1:]])
    return write_table(
        tmp_path / "pairs.tsv",
        [
            ("train", "xx", "en", train),
            ("valid", "xx", "en", valid),
            ("test", "xx", "en", test),
            ("train", "en", "yy", train),
            ("test", "yy", "xx", test),
        ],
    )


def make(table: Path, out: Path, *options: str) -> int:
    return cli.main(["preprocess", "pairs", str(table), "--out", str(out), *OPTIONS, *options])


def test_the_folder_says_what_is_trained_and_what_is_zero_shot(table: Path, tmp_path: Path) -> None:
    assert make(table, tmp_path / "out") == 0
    folder = DataFolder.open(tmp_path / "out")
    assert folder.is_multilingual
    assert folder.languages == ["en", "xx", "yy"]
    trained = [str(direction) for direction in folder.directions("train")]
    assert trained == ["en-xx", "en-yy", "xx-en", "yy-en"]
    tested = [str(direction) for direction in folder.directions("test")]
    assert tested == ["en-xx", "xx-en", "xx-yy", "yy-xx"]
    assert folder.record["lines"]["test"] == {"en-xx": 4, "xx-yy": 4}
    assert folder.task_options()["lang-pairs"] == "en-xx,en-yy,xx-en,yy-en"


def test_binarised_text_is_the_text(table: Path, tmp_path: Path) -> None:
    assert make(table, tmp_path / "out") == 0
    folder = DataFolder.open(tmp_path / "out")
    dictionary = Dictionary.load(str(folder.path / "dict.txt"))
    assert len(dictionary) == 4 + load_model(folder.path / "spm.model").get_piece_size() - 3
    data = data_utils.load_indexed_dataset(f"{folder.path}/train.en-xx.en", dictionary)
    lines = [dictionary.string(data[number]) for number in range(len(data))]
    assert folder.decode(lines, "en") == SENTENCES * 3
    assert all(data[number][-1] == dictionary.eos() for number in range(len(data)))
    total = sum(len(data[number]) for number in range(len(data)))
    assert folder.record["binarised"]["train.en-xx"]["en"]["tokens"] == total


def test_lines_of_a_test_set_all_stay(table: Path, tmp_path: Path) -> None:
    assert make(table, tmp_path / "out") == 0
    folder = DataFolder.open(tmp_path / "out")
    sides = [
        folder.text("test", Direction("yy", "xx"), language).read_text(encoding="utf-8").split("\n")
        for language in ("xx", "yy")
    ]
    assert [len(side) for side in sides] == [5, 5]
    assert sides[0][3] == ""
    assert sides[1][0] == "a b"
    assert folder.record["cleaning"]["test.xx-yy"]["odd"] == {"blank": 1, "carriage return": 1}


def test_a_pair_without_valid_text_holds_some_training_text_out(
    table: Path, tmp_path: Path
) -> None:
    assert make(table, tmp_path / "out") == 0
    folder = DataFolder.open(tmp_path / "out")
    assert folder.record["lines"]["valid"] == {"en-xx": 4, "en-yy": 1}
    assert folder.record["lines"]["train"] == {"en-xx": 12, "en-yy": 11}
    direction = Direction("en", "yy")
    assert folder.text("valid", direction, "en").read_text(encoding="utf-8") == SENTENCES[0] + "\n"
    kept = folder.text("train", direction, "en").read_text(encoding="utf-8").splitlines()
    assert kept == (SENTENCES * 3)[1:]


def test_a_second_run_has_nothing_to_do(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(table, tmp_path / "out") == 0
    before = (tmp_path / "out" / "corpus.json").read_text(encoding="utf-8")
    capsys.readouterr()
    assert make(table, tmp_path / "out") == 0
    assert "nothing to do" in capsys.readouterr().err
    assert (tmp_path / "out" / "corpus.json").read_text(encoding="utf-8") == before
    assert make(table, tmp_path / "out", "--drop-duplicates") == 2
    assert "drop_duplicates" in capsys.readouterr().err
    assert make(table, tmp_path / "out", "--drop-duplicates", "--force") == 0
    assert json.loads((tmp_path / "out" / "corpus.json").read_text(encoding="utf-8"))["lines"][
        "train"
    ] == {
        "en-xx": 4,
        "en-yy": 3,
    }


def test_a_run_that_failed_goes_on_where_it_stopped(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(table, tmp_path / "whole") == 0
    assert make(table, tmp_path / "out", "--vocab-size", "9000") == 2
    assert "largest possible" in capsys.readouterr().err
    part = tmp_path / "out.part"
    assert (part / "text" / "train.en-xx.en").is_file()
    assert not (tmp_path / "out").exists()
    assert make(table, tmp_path / "out") == 0
    assert not part.exists()
    for path in (tmp_path / "whole").rglob("*.*"):
        if path.is_file() and path.name != "corpus.json":
            other = tmp_path / "out" / path.relative_to(tmp_path / "whole")
            assert other.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("rows", "cause"),
    [
        ("train\ten\txx\n", "line 1: 3 columns"),
        ("train\ten\ten\traw\n", "source and target are both 'en'"),
        ("train\ten\tx-x\traw\n", "'x-x' is no language code"),
        ("tran\ten\txx\traw\n", "split 'tran'"),
        ("train\ten\txx\traw\ntrain\txx\ten\traw\n", "line 2: train of xx and en is there already"),
        ("test\ten\txx\traw\n", "has no train line"),
        ("train\ten\txx\traw\ntest\ten\tyy\traw\n", "test.en-yy: there is no training text of yy"),
        ("train\ten\txx\tabsent/raw\n", "no en side of absent/raw: neither absent/raw.en"),
    ],
)
def test_a_table_that_cannot_be_is_refused(
    rows: str, cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text(rows, encoding="utf-8")
    assert make(path, tmp_path / "out") == 2
    assert cause in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))


def test_sides_of_different_length_are_refused_with_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = write(tmp_path / "raw" / "train", en=["a b"] * 3, xx=["c d"] * 2)
    table = write_table(tmp_path / "pairs.tsv", [("train", "en", "xx", prefix)])
    assert make(table, tmp_path / "out") == 2
    message = capsys.readouterr().err
    assert "train.en has 3 lines" in message
    assert "train.xx has 2" in message


def test_several_processes_make_the_same_folder(table: Path, tmp_path: Path) -> None:
    assert make(table, tmp_path / "one") == 0
    assert make(table, tmp_path / "two", "--workers", "2") == 0
    for path in (tmp_path / "one").rglob("*.*"):
        if path.is_file() and path.name != "corpus.json":
            other = tmp_path / "two" / path.relative_to(tmp_path / "one")
            assert other.read_bytes() == path.read_bytes()


def test_packed_text_gives_the_same_folder(table: Path, tmp_path: Path) -> None:
    assert make(table, tmp_path / "plain") == 0
    for path in (tmp_path / "raw").iterdir():
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert make(table, tmp_path / "packed") == 0
    for name in ("spm.model", "train.en-xx.xx.bin", "text/test.xx-yy.xx"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "packed" / name).read_bytes()


def test_reading_rows_keeps_each_pair_in_one_order(table: Path) -> None:
    assert [row.name for row in read_table(table)] == [
        "train.en-xx",
        "valid.en-xx",
        "test.en-xx",
        "valid.en-yy",
        "train.en-yy",
        "test.xx-yy",
    ]


def test_temperature_evens_the_sample_out() -> None:
    lines = {"big": 1_000_000, "small": 10_000}
    assert allot(lines, 101_000, 1.0) == {"big": 100_000, "small": 1000}
    # square roots are 1,000 and 100
    assert allot(lines, 11_000, 2.0) == {"big": 10_000, "small": 1000}
    # shares of 5 would take more of the small language than there is: the big one gets the rest
    assert allot(lines, 500_000, 5.0) == {"small": 10_000, "big": 490_000}
    assert allot(lines, 10**9, 5.0) == lines


def test_sampled_lines_are_spread_over_all_files() -> None:
    first = list(spread(map(str, range(70)), 0, 10, 100))
    second = list(spread(map(str, range(70, 100)), 70, 10, 100))
    assert [int(line) for line in first + second] == list(range(9, 100, 10))
    assert Counter(spread("abc", 0, 3, 3)) == Counter("abc")


@pytest.mark.parametrize("name", ["de", "de-", "de-de", "de-en-fr", "-en"])
def test_what_is_no_direction_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no direction"):
        Direction.parse(name)


def test_finished_pairs_stay_where_another_one_cannot_be_read_yet(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = write(tmp_path / "long" / "train", en=["x" * 300, "a b"], zz=["y", "c d"])
    with table.open("a", encoding="utf-8") as rows:
        rows.write(f"train\ten\tzz\t{long}\n")
    monkeypatch.setenv("DEEPNET_MAX_LINE", "200")
    assert make(table, tmp_path / "out") == 2
    assert "DEEPNET_MAX_LINE" in capsys.readouterr().err
    assert list((tmp_path / "out.part" / "text.part" / "counted").glob("*.json"))
    monkeypatch.setenv("DEEPNET_MAX_LINE", "400")
    assert make(table, tmp_path / "out") == 0
    assert "files were done before" in capsys.readouterr().err


def test_a_folder_beside_it_is_the_user_s(table: Path, tmp_path: Path) -> None:
    raw, old = tmp_path / "out.raw", tmp_path / "out.old"
    raw.mkdir()
    old.mkdir()
    (raw / "extracted.json").write_text("{}", encoding="utf-8")  # as `deepnet wmt17` leaves it
    for words in ((), ("--drop-duplicates", "--force")):
        assert make(table, tmp_path / "out", *words) == 0
        assert raw.is_dir()
        assert old.is_dir()


def test_a_table_of_fewer_pairs_is_another_request(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(table, tmp_path / "out") == 0
    rows = table.read_text(encoding="utf-8").splitlines(keepends=True)
    table.write_text("".join(row for row in rows if "xx" not in row), encoding="utf-8")
    assert make(table, tmp_path / "out") == 2
    assert "input train.en-xx.en is left out" in capsys.readouterr().err


def test_a_folder_without_a_name_is_refused(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(table, Path()) == 2
    assert "OUT is '.'; give a folder with a name" in capsys.readouterr().err
