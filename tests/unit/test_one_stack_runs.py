"""What the tools around a training make of models of one stack and of folders of one language."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.training.settle import check_task

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
    assert "only encoder-decoders can be planned" in line
