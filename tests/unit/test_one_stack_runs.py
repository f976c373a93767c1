"""What the tools around a training make of models of one stack and of folders of one language."""

from __future__ import annotations

import pytest

from fairseq_deepnet import cli


@pytest.mark.parametrize("config", ["multi30k_lm", "multi30k_masked_lm"])
def test_a_plan_says_that_it_is_for_encoder_decoders(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", config, "--vocabulary=100"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "only encoder-decoders can be planned" in line
