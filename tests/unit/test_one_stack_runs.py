"""What the tools around a training make of models of one stack and of folders of one language."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.planning.estimates import vocabulary_in
from fairseq_deepnet.tools.run_scores import read_score
from fairseq_deepnet.tools.training.settle import _depth, check_task

FOLDERS: dict[str, dict[str, Any]] = {
    "translation": {"source": "de", "target": "en"},
    "translation_multi_simple_epoch": {"directions": {}},
    "language_modeling": {"language": "en"},
    "masked_lm": {"language": "en"},
}


@pytest.mark.parametrize("task", FOLDERS)
@pytest.mark.parametrize("made_for", FOLDERS)
def test_a_task_trains_on_folders_of_its_kind_alone(task: str, made_for: str) -> None:
    config = configs.Config("some", {"task": task}, {})
    if FOLDERS[task] == FOLDERS[made_for]:
        check_task(FOLDERS[made_for], config, Path("data"))
    else:
        with pytest.raises(ValueError, match=f"data holds .* config some trains on .*{task}"):
            check_task(FOLDERS[made_for], config, Path("data"))
    check_task({}, config, Path("data"))  # a folder of fairseq-preprocess alone says nothing


@pytest.mark.parametrize("config", ["multi30k_lm", "multi30k_masked_lm"])
def test_a_plan_says_that_it_is_for_encoder_decoders(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", config]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "a plan can be made for encoder-decoders alone" in line


def test_the_vocabulary_of_one_language_is_that_of_its_dictionary(tmp_path: Path) -> None:
    (tmp_path / "corpus.json").write_text(json.dumps({"language": "en"}), encoding="utf-8")
    (tmp_path / "dict.txt").write_text("a 1\nb 1\n", encoding="utf-8")
    assert vocabulary_in(tmp_path) == (6, 6)


def test_a_summary_names_the_depths_that_there_are() -> None:
    both = {"encoder_layers": 3, "decoder_layers": 2, "residual_scheme": "deepnorm"}
    assert _depth(Namespace(**both)) == "3L-2L, deepnorm"
    assert _depth(Namespace(decoder_layers=18, residual_scheme="admin")) == "18L, admin"
    assert _depth(Namespace(encoder_layers=6)) == "6L"
    assert _depth(Namespace()) == "?L"


def test_a_perplexity_is_no_score_of_a_translation(tmp_path: Path) -> None:
    (tmp_path / "scores").mkdir()
    record = tmp_path / "scores" / "test.checkpoint_best.perplexity.json"
    record.write_text(json.dumps({"perplexity": 8.0}), encoding="utf-8")
    assert read_score(tmp_path) is None
