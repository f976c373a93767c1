"""The one table of quantities, of which each row is measured."""

from __future__ import annotations

from pathlib import Path

from fairseq_deepnet.monitoring import records
from fairseq_deepnet.monitoring.instruments import INSTRUMENTS
from fairseq_deepnet.monitoring.probe import SENTENCES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "inspect-a-run.md"


def test_each_quantity_has_one_instrument_and_all_that_the_table_says() -> None:
    named = [name for instrument in INSTRUMENTS for name in instrument.quantities]
    assert sorted(named) == sorted(records.QUANTITIES)
    for row in records.QUANTITIES.values():
        assert row.unit
        assert row.when
        assert row.meaning
        assert "\\" not in row.meaning


def test_the_documentation_names_the_size_of_the_probe() -> None:
    assert f"first {SENTENCES} sentences" in PAGE.read_text(encoding="utf-8")
