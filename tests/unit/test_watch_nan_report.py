"""What the divergence watch reads off fairseq's NaN detector and the gradients that it left."""

from fairseq_deepnet.divergence.nan_report import NanReport


def test_norms_of_an_update_that_failed_tell_only_whether_they_are_finite() -> None:
    report = NanReport()
    report.detach()
    norms: dict[str, list[float | None]] = {
        "encoder": [512.0, None],
        "decoder": [float("inf"), 1.0, 1.0],
    }
    finding = report.finding(FloatingPointError("gradients are Nan/Inf"), 3, norms, [])
    assert "decoder layer 1 of 3 has no finite gradient" in finding.what
    assert finding.values["finite"] == {"encoder": [True, None], "decoder": [False, True, True]}
    assert "gradient_norm" not in finding.values  # of other units than those of the last good look


def test_several_layers_have_and_one_has_no_finite_gradient() -> None:
    report, nan = NanReport(), float("nan")
    report.detach()

    def told(*row: float) -> str:
        norms = {"encoder": [1.0, 1.0, 1.0], "decoder": row}
        return report.finding(FloatingPointError("gradients are Nan/Inf"), 3, norms, []).what

    assert "decoder layer 3 of 3 has no finite gradient" in told(1.0, 1.0, nan)
    assert "decoder layers 1-2 of 3 have no finite gradient" in told(nan, nan, 1.0)
