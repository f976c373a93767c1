"""docs/monitoring.md shows the one table of quantities."""

from __future__ import annotations

from pathlib import Path

from fairseq_deepnet.monitoring.probe import SENTENCES
from fairseq_deepnet.monitoring.quantities import markdown_table

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"


def test_the_documentation_shows_the_table_of_quantities() -> None:
    assert markdown_table() in PAGE.read_text(encoding="utf-8")


def test_the_documentation_names_the_size_of_the_probe() -> None:
    assert f"first {SENTENCES} sentences" in PAGE.read_text(encoding="utf-8")
