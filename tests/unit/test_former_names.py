"""Options under names that they had once: they work, and say what they are called now."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_deepnet import cli, former_names
from fairseq_deepnet.tools import configs, fairseq_options
from fairseq_deepnet.tools.configs import check_options, load_config


@pytest.fixture(autouse=True)
def nothing_told_yet() -> None:
    former_names.announce.cache_clear()


def test_words_of_a_subcommand_get_the_names_of_today(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["x", "--output", "a", "--source=de", "--batch", "8", "--", "--target", "fr"]
    assert former_names.of_today("translate", words) == [
        *("x", "--out", "a", "--src=de", "--batch-sentences", "8", "--", "--target", "fr"),
    ]
    assert former_names.of_today("perplexity", ["--batch", "8"]) == ["--batch", "8"]
    assert capsys.readouterr().err.splitlines() == [
        "--output is now called --out; the former name still works",
        "--source is now called --src; the former name still works",
        "--batch is now called --batch-sentences; the former name still works",
    ]


def test_an_option_of_a_subcommand_works_under_its_former_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    text.write_text("ein Satz\n", encoding="utf-8")
    files = ["--hypotheses", str(text), "--references", str(text)]
    assert cli.main(["score", *files, "--target", "en"]) == 0
    former = capsys.readouterr()
    assert former.err == "--target is now called --tgt; the former name still works\n"
    assert cli.main(["score", *files, "--tgt", "en"]) == 0
    assert capsys.readouterr().out == former.out


def test_checkpointing_of_activations_is_asked_for_by_either_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("--checkpoint-activations-every", "--checkpoint-every"):
        args = fairseq_options.parse_training(["DATA", "--arch=deepnet_transformer", name, "4"])
        assert args.checkpoint_every == "4"  # as checkpoints have always held it
    told = "checkpoint-every is now called checkpoint-activations-every; the former name still"
    assert capsys.readouterr().err == f"{told} works\n"


def test_a_config_with_a_former_name_is_read_with_the_name_of_today(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    text = "arch: deepnet_transformer\ncheckpoint-every: auto\n"
    path.write_text(text, encoding="utf-8")
    config = load_config(str(path), ["checkpoint-every=3"])
    assert config.options == {"arch": "deepnet_transformer", "checkpoint-activations-every": 3}
    check_options(config)
    assert "checkpoint" not in load_config(str(path), ["checkpoint-every=null"]).to_yaml()


def test_only_the_names_of_today_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["options", "deepnet_transformer"]) == 0
    shown = capsys.readouterr().out
    assert "--checkpoint-activations-every" in shown
    assert "--checkpoint-every" not in shown


def test_an_error_bears_the_name_of_the_script_that_was_typed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPNET_COMMAND", "train_wmt17")
    assert cli.main(["args", "no-such-config"]) == 2
    assert capsys.readouterr().err.startswith("[train_wmt17] error: no config 'no-such-config'")

    def press_ctrl_c(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(configs, "run", press_ctrl_c)
    assert cli.main(["args", "multi30k"]) == 130
    assert capsys.readouterr().err == "[train_wmt17] interrupted\n"


def test_a_former_stage_names_the_subcommand_that_it_is_a_stage_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["moses", "learn"]) == 2
    assert "it is a stage of `deepnet preprocess moses` now" in capsys.readouterr().err
