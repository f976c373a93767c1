"""What the tools around a training make of models of one stack and of folders of one language."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.training.settle import check_data

FOLDERS: dict[str, dict[str, Any]] = {
    "translation": {"source": "de", "target": "en"},
    "translation_multi_simple_epoch": {"directions": {}},
    "language_modeling": {"language": "en"},
    "masked_lm": {"language": "en"},
}


@pytest.mark.parametrize("task", FOLDERS)
@pytest.mark.parametrize("made_for", FOLDERS)
def test_a_task_trains_only_on_folders_of_its_kind(
    task: str, made_for: str, tmp_path: Path
) -> None:
    config = configs.Config("some", {"task": task}, {})
    for name in ("dict.de.txt", "train.idx"):
        (tmp_path / name).touch()
    check_data(tmp_path, config)  # a folder of fairseq-preprocess has no record
    (tmp_path / "corpus.json").write_text(json.dumps(FOLDERS[made_for]), encoding="utf-8")
    if FOLDERS[task] == FOLDERS[made_for]:
        check_data(tmp_path, config)
    else:
        with pytest.raises(ValueError, match=r"holds .* config some trains on"):
            check_data(tmp_path, config)


@pytest.mark.parametrize("config", ["multi30k_lm", "multi30k_masked_lm"])
def test_a_plan_says_that_it_is_for_encoder_decoders(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", config, "--vocabulary=100"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "only encoder-decoders can be planned" in line
