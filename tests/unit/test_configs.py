"""Configs: inheritance, conversion to arguments, and refused content."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_deepnet.tools.configs import (
    check_data,
    check_options,
    load_config,
    recorded_config,
    to_arguments,
)


def write(folder: Path, name: str, text: str) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_later_files_override_defaults_and_the_command_line_overrides_all(tmp_path: Path) -> None:
    write(tmp_path, "base", "lr: 1e-3\ndropout: 0.1\nseed: 1\n")
    write(tmp_path, "middle", "defaults: [base]\ndropout: 0.2\n")
    path = write(tmp_path, "top", "defaults: [middle]\nseed: 3\n")
    config = load_config(path, ["lr=5e-4", "--patience=2"])
    assert config.options == {"lr": "5e-4", "dropout": 0.2, "seed": 3, "patience": 2}


def test_a_schedule_as_long_as_the_run_follows_max_update_unless_set() -> None:
    def lengths(*overrides: str, name: str = "multi30k") -> tuple[object, object]:
        options = load_config(name, overrides).options
        return options["max-update"], options.get("total-num-update")

    assert lengths() == (2400, 2400)
    assert lengths("max-update=8000") == (8000, 8000)
    assert lengths("total-num-update=2400", "max-update=8000") == (8000, 2400)
    assert lengths("max-update=8000", "total-num-update=null") == (8000, None)
    assert lengths("total-num-update=3000") == (2400, 3000)
    assert lengths("max-update=8000", name="multi30k_tiny") == (8000, None)


def test_null_removes_an_option(tmp_path: Path) -> None:
    write(tmp_path, "base", "arch: deepnet_transformer\nresidual-scheme: deepnorm\n")
    path = write(tmp_path, "top", "defaults: [base]\narch: transformer\nresidual-scheme: null\n")
    assert load_config(path).options == {"arch": "transformer"}


def test_recipes_are_merged_key_by_key(tmp_path: Path) -> None:
    write(tmp_path, "base", "recipe:\n  data: data/a\n  global-batch-tokens: 128 x 4096\n")
    path = write(tmp_path, "top", "defaults: [base]\nrecipe: {data: data/b, vocabulary: 9}\n")
    config = load_config(path, ["recipe.reference=table 5", "recipe.vocabulary=null"])
    tokens = {"global-batch-tokens": "128 x 4096"}
    assert config.recipe == {"data": "data/b", **tokens, "reference": "table 5"}


def test_missing_data_of_a_recipe_are_built_with_its_languages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TGT", "en fr")
    monkeypatch.delenv("DEEPNET_COMMAND", raising=False)
    with pytest.raises(FileNotFoundError, match="run `bash scripts/preprocess_wmt17"):
        check_data(tmp_path, load_config("wmt17_base"))
    monkeypatch.setenv("DEEPNET_COMMAND", "train_wmt17")
    with pytest.raises(FileNotFoundError, match="run `TGT='en fr' bash scripts/preprocess_"):
        check_data(tmp_path, load_config("wmt17_base"))


def test_arguments_are_flags_values_and_nothing_for_false() -> None:
    options = {
        "fp16": True,
        "cpu": False,
        "adam-betas": "(0.9, 0.98)",
        "lr": 0.001,
        "patience": -1,
        "keep-last-epochs": 5,
    }
    assert to_arguments(options) == [
        "--fp16",
        "--adam-betas=(0.9, 0.98)",
        "--lr=0.001",
        "--patience=-1",
        "--keep-last-epochs=5",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source-lang: no\n", r"c\.yaml: source-lang: YAML reads the language no as false"),
        ("lr: {a: 1}\n", r"c\.yaml: lr: a value is one scalar"),
        ("- lr\n", r"c\.yaml: a config is a mapping"),
        ("lr: [1\n", r"c\.yaml: not a valid config"),
        ("recipe:\n  dta: x\n", r"c\.yaml: recipe: unknown key 'dta'"),
        ("defaults: base\n", r"c\.yaml: defaults: expected a list"),
        ("1: 2\n", r"c\.yaml: '1': an option's name is one word"),
        ("user-dir=/x: true\n", r"c\.yaml: 'user-dir=/x': an option's name is one word"),
        ("encoder-layers: exit()\n", r"c\.yaml: encoder-layers is 'exit\(\)'"),
    ],
)
def test_malformed_configs_are_refused_with_file_and_key(
    tmp_path: Path, text: str, message: str
) -> None:
    path = write(tmp_path, "c", text)
    with pytest.raises(ValueError, match=message):
        load_config(path)


@pytest.mark.parametrize(
    "line",
    [
        "log-file: {place}",
        "tensorboard-logdir: {place}",
        "aim-repo: {place}",
        "wandb-project: mine",
        "distributed-init-method: file://{place}",
        "checkpoint-suffix: /../../x",
        "plasma-path: {place}",
        "user-dir: {place}",
        "post-save-script: touch {place}",
        "log_file: {place}",
        "gpt2-vocab-bpe: https://nowhere",
        "--log-file: {place}",
        "log-file: null",
    ],
)
def test_only_the_command_line_may_set_paths_and_addresses(line: str, tmp_path: Path) -> None:
    write(tmp_path, "strange", f"lr: 0.1\n{line.format(place=tmp_path / 'mark')}\n")
    path = write(tmp_path, "mine", "defaults: [strange]\narch: transformer\n")
    with pytest.raises(ValueError, match=r"strange\.yaml: no file may set "):
        load_config(path)
    assert load_config("multi30k", ["log-file=x"]).options["log-file"] == "x"


def test_a_recorded_config_contains_command_line_options(tmp_path: Path) -> None:
    write(tmp_path, "config", "lr: 0.1\nlog-file: mine.log\n")
    assert recorded_config(tmp_path).options == {"lr": 0.1, "log-file": "mine.log"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("max_token=5", "unknown --max_token=5; did you mean --max-tokens[?]"),
        ("lr-scheduler=inverse_sqr", "did you mean inverse_sqrt"),
        ("arch=deepnet_transforme", "did you mean deepnet_transformer"),
        ("max-tokens=many", "multi30k: argument --max-tokens: invalid"),
        ("share-all-embeddings=1", "--share-all-embeddings: ignored explicit argument '1'"),
        ("dropout=true", "argument --dropout: expected one argument"),
    ],
)
def test_fairseqs_parser_refuses_options_and_values(override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_options(load_config("multi30k", [override]))
