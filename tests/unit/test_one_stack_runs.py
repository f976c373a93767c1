"""`deepnet plan` refuses models with one stack."""

from __future__ import annotations

import pytest

from fairseq_deepnet import cli


@pytest.mark.parametrize("config", ["multi30k_lm", "multi30k_masked_lm"])
def test_only_encoder_decoders_can_be_planned(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", config, "--vocabulary=100"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "only encoder-decoders can be planned" in line
