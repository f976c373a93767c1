"""`deepnet quickstart`: the plan and the summary."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.experiments import sweep
from tests.support.cells import write_cell, write_log, write_score


@pytest.fixture
def scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate the quickstart's training."""

    def train(definition, cells, folder, *args, **options) -> None:  # type: ignore[no-untyped-def]
        for cell, bleu in zip(cells, (91.0, 0.4), strict=True):
            run = write_cell(folder, cell.name, "quickstart", {"scheme": cell.name}, bleu=bleu)
            write_log(run, {1000: 5.0}, train={20: 9.0, 1000: 3.5})
            text = (run / write_score(run, bleu)).with_suffix(".txt")
            text.write_text("He eats.\n", encoding="utf-8")

    monkeypatch.setattr(sweep, "train", train)
    (tmp_path / "data" / "text").mkdir(parents=True)
    for language in ("de", "en"):
        (tmp_path / "data" / "text" / f"test.{language}").write_text("x\n", encoding="utf-8")
    call = sweep.call
    monkeypatch.setattr(
        sweep, "call", lambda m, words: 0 if words[0] == "sample" else call(m, words)
    )
    return tmp_path


def test_the_command_writes_a_summary_and_curves(
    scored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", str(scored / "data"), "--out", str(scored / "out"), "--gpus", "0"]
    assert cli.main(["quickstart", *words]) == 0
    page = capsys.readouterr().out
    rows = [row.split() for row in page.splitlines() if row.startswith(("DeepNorm ", "Post-LN "))]
    assert rows == [
        ["DeepNorm", "91.0", "50.0", "3.50", "3.50", "1,000"],
        ["Post-LN", "0.4", "50.0", "3.50", "3.50", "1,000"],
    ]
    for part in ("source     x", "Post-LN    He eats."):
        assert part in page
    assert (scored / "out" / "summary.txt").read_text(encoding="utf-8") == page
    assert (scored / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_failed_model_is_an_error(
    scored: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cell(scored / "out", "deepnorm", "quickstart", {})
    write_cell(scored / "out", "post-ln", "quickstart", {}, "failed", reason="killed")
    monkeypatch.setattr(sweep, "train", lambda *rest: None)
    words = ["--data", str(scored / "data"), "--out", str(scored / "out"), "--gpus", "0"]
    assert cli.main(["quickstart", *words]) == 2
    assert "the Post-LN model failed: killed; see" in capsys.readouterr().err


def test_a_dry_run_writes_nothing(scored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", str(scored / "none"), "--out", str(scored / "out"), "--depth", "6"]
    assert cli.main(["quickstart", *words, "--dry-run"]) == 0
    plan = capsys.readouterr().out
    (line,) = [line for line in plan.splitlines() if line.startswith("post-ln ")]
    for part in ("encoder-layers 6", "residual-scheme post-ln", "PRECISION fp32"):
        assert part in line
    assert not (scored / "out").exists()
    assert not (scored / "none").exists()
