"""`deepnet options` lists options that fairseq-train --help omits."""

from __future__ import annotations

import pytest

from fairseq_deepnet.cli import main


@pytest.mark.parametrize("arch", ["deepnet_transformer_tiny", "deepnet_transformer_lm"])
def test_an_architectures_own_options_are_shown_and_no_others(
    arch: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["options", arch]) == 0
    shown = capsys.readouterr().out
    for option in ("--residual-scheme", "--monitor-interval", "--on-divergence", "--dropout"):
        assert f"  {option} " in shown
    assert "--max-tokens" not in shown
    assert "--fallback-step" not in shown
    assert "--quant-noise-scalar" not in shown  # fairseq has it, but our models refuse it
