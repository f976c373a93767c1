"""`deepnet preprocess`: its options, the variables of the scripts, and what it refuses."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.tools.corpora import download
from fairseq_deepnet.tools.corpora.builder import rows_of
from fairseq_deepnet.tools.corpora.preprocess import FOLDERS, KINDS, Given, read
from tests.support.shell import ROOT

HOSTILE = ["$(touch ran)", "a[$(touch ran)]", "-rf", "* [a] ?", "9" * 20, "08", "a\nb", "ü ñ/é"]
SCRIPTS = {
    kind: path
    for path in sorted((ROOT / "scripts").glob("preprocess*.sh"))
    for kind in re.findall(r"hand_over preprocess (\S+)", path.read_text(encoding="utf-8"))
}


NEEDED = dict.fromkeys(("TRAIN", "VALID", "TABLE", "OUT"), "x") | {"LANG_CODE": "en"}
NEEDED |= {"SRC": "de", "TGT": "en"}


def test_every_kind_has_its_script() -> None:
    assert set(SCRIPTS) == set(KINDS)


@pytest.mark.parametrize("kind", ["pair", "pairs", "language", "moses"])
def test_the_script_explains_every_variable(kind: str) -> None:
    header = SCRIPTS[kind].read_text(encoding="utf-8").partition("set -euo")[0]
    for name in vars(read(kind, Given(NEEDED, [], True))).keys() - {"fairseq_options"}:
        assert re.search(rf"#   .*\b{name.upper()}\b", header), name


@pytest.mark.parametrize("name", ["VOCAB_SIZE", "WORKERS", "HOLD_OUT", "FORCE", "SUBWORDS", "SRC"])
@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_no_value_is_refused_in_one_line(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is .* must be") as caught:
        Given({name: text}, [], True).read(f"{name} WORKERS", {}, "")
    assert "\n" not in str(caught.value)


def test_errors_name_what_the_user_has_typed() -> None:
    for by_variable, name in ((True, "VOCAB_SIZE"), (False, "--vocab-size")):
        with pytest.raises(ValueError, match=f"^{name} is 'many'; it must be a whole number"):
            Given({"VOCAB_SIZE": "many"}, [], by_variable).read("VOCAB_SIZE", {}, "")


def test_an_option_comes_before_a_variable_and_both_before_the_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SRC", "de")
    monkeypatch.setenv("VOCAB_SIZE", "variable")
    words = ["preprocess", "multi30k", "--variables"]
    assert cli.main(words) == 2
    assert "VOCAB_SIZE is 'variable'" in capsys.readouterr().err
    assert cli.main([*words, "--vocab-size", "option"]) == 2
    assert "VOCAB_SIZE is 'option'" in capsys.readouterr().err
    monkeypatch.setenv("VOCAB_SIZE", "")
    assert cli.main([*words, "--tgt", "de"]) == 2
    assert "SRC and TGT are both 'de'" in capsys.readouterr().err


def test_variables_are_not_read_unasked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SRC", "de")
    assert cli.main(["preprocess", "pair", "--tgt", "en"]) == 2
    assert "--src is not set" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["multi30k", "iwslt14", "wmt17-tokenized"])
@pytest.mark.parametrize("words", [["--bpe", "gpt2"], ["--nwordssrc", "many"]])
def test_a_wrong_option_is_told_before_anything_is_downloaded(
    kind: str,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(download, "fetch", lambda *_, **__: pytest.fail("it was downloaded"))
    out = f"--out={tmp_path / 'out'}"
    assert cli.main(["preprocess", kind, out, "--", *words]) == 2
    assert words[0] in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# What scripts/preprocess_{iwslt14,wmt17,opus100}.sh said before the defaults moved into Python.
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("moses", {"max_ratio": 1.5, "max_tokens": 175, "merges": 10_000, "hold_out": 0}),
        ("iwslt14", {"max_ratio": 1.5, "hold_out": 23, "lowercase": True, "joined": False}),
        ("iwslt14-sentencepiece", {"max_ratio": 5, "hold_out": 23, "vocab_size": 10_000}),
        ("wmt17", {"max_ratio": 5, "vocab_size": 32_000, "max_words": 250}),
        ("wmt17-tokenized", {"max_ratio": 1.5, "max_tokens": 250, "joined": True}),
        ("opus100", {"vocab_size": 64_000, "subwords": "unigram", "byte_fallback": True}),
        ("opus100", {"character_coverage": 0.9995, "sample": 10_000_000, "temperature": 5}),
        ("pairs", {"character_coverage": 0.9995, "vocab_size": 32_000, "temperature": 5}),
        ("multi30k-multilingual", {"character_coverage": 1, "vocab_size": 8000, "temperature": 1}),
        ("multi30k-lm", {"max_words": 1000, "vocab_size": 4000}),
    ],
)
def test_published_recipes_keep_their_defaults(kind: str, expected: dict[str, object]) -> None:
    value = vars(read(kind, Given(NEEDED, [], True)))
    assert {name: value[name] for name in expected} == expected


def test_what_was_held_out_before_is_one_of_the_settings() -> None:
    folder = FOLDERS[KINDS["iwslt14-sentencepiece"].folder]
    for given, recorded in (({}, 23), ({"HOLD_OUT": "4"}, 4)):
        asked = Given(given, [], True)
        blueprint = folder.blueprint(read("iwslt14-sentencepiece", asked), asked)
        rows = rows_of(("de", "en"), "train", "valid")
        assert blueprint(rows).settings["hold_out"] == recorded


SMALL = ["--train-lines=300", "--valid-lines=20", "--test-lines=20"]


def make_sample(out: Path, *words: str) -> int:
    return cli.main(["preprocess", "sample", f"--out={out}", *SMALL, *words])


@pytest.mark.parametrize("force", [True, False])
def test_a_run_that_failed_is_resumed_with_force_and_with_another_vocabulary(
    force: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "data"
    words = ["--force"] if force else []
    if force:
        assert make_sample(out, "--vocab-size=95") == 0
    capsys.readouterr()
    assert make_sample(out, "--vocab-size=9000", *words) == 2
    said = capsys.readouterr().err
    assert "checking and cleaning the text\n" in said
    assert "is too large for this text" in said
    assert make_sample(out, "--vocab-size=90", *words) == 0
    assert "checking and cleaning the text: done before" in capsys.readouterr().err
    assert make_sample(tmp_path / "whole", "--vocab-size=90") == 0
    content = [
        {path.name: path.read_bytes() for path in folder.glob("*.*") if path.suffix != ".json"}
        for folder in (out, tmp_path / "whole")
    ]
    assert content[0] == content[1]


def test_a_mistyped_name_of_text_is_refused_though_the_folder_is_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train", "valid"):
        for language in ("de", "en"):
            lines = "".join(f"{name} {language} word{number}\n" for number in range(50))
            (tmp_path / f"{name}.{language}").write_text(lines, encoding="utf-8")

    def make(train: str) -> int:
        words = ["--src=de", "--tgt=en", f"--train={tmp_path / train}", "--vocab-size=60"]
        words += [f"--valid={tmp_path / 'valid'}", f"--out={tmp_path / 'out'}"]
        return cli.main(["preprocess", "pair", *words])

    assert make("train") == 0
    assert make("train") == 0
    assert "nothing to do" in capsys.readouterr().err
    assert make("trian") == 2
    assert "trian" in capsys.readouterr().err


def test_a_finished_published_folder_needs_neither_network_nor_archives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_network(*_: object) -> None:
        raise AssertionError("downloads")

    monkeypatch.setattr(download, "fetch", no_network)
    raw, lines = tmp_path / "raw", {"train": 29_000, "valid": 1_014, "test": 1_000}
    raw.mkdir()
    for split, count in lines.items():
        for language in ("de", "en"):
            text = "".join(f"{split} word{number % 97}\n" for number in range(count))
            (raw / f"{split}.{language}").write_text(text, encoding="utf-8")
    words = ["preprocess", "multi30k", f"--out={tmp_path / 'out'}", "--vocab-size=80"]
    assert cli.main([*words, f"--raw={raw}"]) == 0
    shutil.rmtree(raw)
    capsys.readouterr()
    assert cli.main([*words, f"--downloads={tmp_path / 'gone'}"]) == 0
    assert "is complete: nothing to do" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "variables", "message"),
    [
        ("iwslt14", {"JOINT": "1"}, "JOINT has no effect on iwslt14: unset it; here it is JOINED"),
        ("iwslt14", {"VOCAB_SIZE": "50"}, "VOCAB_SIZE has no effect on iwslt14"),
        ("multi30k", {"MERGES": "50"}, "MERGES has no effect on multi30k"),
        ("iwslt14", {"HOLD_OUT": "0"}, "HOLD_OUT is 0, and iwslt14 has no validation set"),
        ("iwslt14-sentencepiece", {"HOLD_OUT": "0"}, "HOLD_OUT is 0, and iwslt14-sentencepiece"),
        ("iwslt14", {"LOWERCASE": "yes"}, "LOWERCASE is 'yes'; it must be 0 or 1"),
    ],
)
def test_what_has_no_effect_on_a_recipe_is_refused(
    kind: str,
    variables: dict[str, str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["preprocess", kind, "--variables"]) == 2
    assert message in capsys.readouterr().err


def test_a_dry_run_prints_the_recipe_and_every_default_can_be_switched_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--dry-run", f"--out={tmp_path / 'out'}"]
    assert cli.main(["preprocess", "iwslt14", *out]) == 0
    assert "--lowercase True" in capsys.readouterr().out
    for kind, option in (("iwslt14", "lowercase"), ("wmt17-tokenized", "joined")):
        assert cli.main(["preprocess", kind, f"--{option}=0", *out]) == 0
        said = capsys.readouterr().out
        assert f"would make {tmp_path / 'out'}" in said
        assert f"--{option}" not in said
    assert cli.main(["preprocess", "wmt17-tokenized", "--hold-out=0", *out]) == 0
    assert cli.main(["download", "iwslt14", *out]) == 0
    assert f"to {tmp_path / 'out' / 'de-en.tgz'}" in capsys.readouterr().out
    assert [*tmp_path.iterdir()] == []


def test_help_shows_the_defaults_of_the_corpus(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["preprocess", "wmt17-tokenized", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "number of byte-pair codes (40000)" in said
    assert "1: one dictionary for both languages (1)" in said
    assert "lower case (0)" in said
