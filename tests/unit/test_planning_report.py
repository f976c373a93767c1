"""What `deepnet plan` says of trainings that differ in one thing."""

import pytest

from fairseq_deepnet import cli

PLAN = ("plan", "multi30k_tiny", "--vocabulary", "1000", "--gpus")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("0", "--memory", "64"), "It fits into 64 GiB, with "),
        (("0",), "freed memory goes back to the system"),
        (("1",), "host memory: "),
        (("1", "checkpoint-activations=true"), "activation checkpointing: encoder: "),
        (("1", "attention-dropout=0.1"), "attention by a kernel that keeps no tokens x tokens"),
        (("0", "attention-dropout=0.1"), "on the CPU torch keeps tokens x heads x length weights"),
        (
            ("1", "criterion=adaptive_loss", "label-smoothing=null"),
            "holds what label_smoothed_cross_entropy does",
        ),
        (("1", "max-update=null"), "no --max-update: add max-update=N"),
        (("8", "--teraflops", "10"), "GPU-hours"),
        (("8", "--teraflops", "10", "max-update=null"), "time an update (10 TFLOP/s a device"),
    ],
)
def test_what_is_told_of_a_training(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*PLAN, *words]) in (0, None)
    assert said in capsys.readouterr().out
