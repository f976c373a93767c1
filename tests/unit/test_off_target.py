"""Off-target rates of sentences in known languages, and of real references."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.evaluation.scoring import letters, off_target, off_target_record

pytest.importorskip("py3langid", reason="needs the extra langid")
FOUR = ["cs", "de", "en", "fr"]
GERMAN = ["Ein Mann fährt mit dem Fahrrad über die Straße.", "Zwei Hunde spielen im Schnee."]
ENGLISH = ["A man is riding his bicycle across the street.", "Two dogs are playing in the snow."]
FRENCH = ["Un homme traverse la rue à vélo.", "Deux chiens jouent dans la neige."]


def test_lines_in_another_language_are_counted_by_language() -> None:
    share, counts = off_target([*GERMAN, ENGLISH[0], *FRENCH, "Yes."], "de", FOUR)
    assert share == pytest.approx(3 / 5)
    assert counts == {"de": 2, "fr": 2, "en": 1}


@pytest.mark.parametrize(
    ("line", "count"),
    [("a1 b2-c", 3), ("é", 1), ("e\u0301", 2), ("我们ab", 8), ("사과", 6), ("", 0)],
)
def test_characters_for_words_or_syllables_count_as_three(line: str, count: int) -> None:
    assert letters(line) == count


def test_indistinguishable_languages_count_as_one() -> None:
    norwegian = ["To hunder leker i snøen utenfor huset.", "En mann sykler over gaten."]
    for target in ("nb", "no"):
        assert off_target(norwegian, target, ["de", "nb", "no"]) == (0.0, {target: 2})


def test_an_unsupported_language_has_no_rate() -> None:
    assert off_target(GERMAN, "umb", [*FOUR, "umb"]) == (None, {})


def test_a_record_contains_the_rate_its_floor_and_a_signature() -> None:
    record = off_target_record([GERMAN[0], ENGLISH[1]], GERMAN, "de", FOUR)
    assert record["off_target"] == 0.5
    assert record["off_target_floor"] == 0.0
    assert record["off_target_languages"] == {"de": 1, "en": 1}
    assert record["off_target_signature"].endswith("|min:10|cs,de,en,fr")


@pytest.mark.parametrize("language", FOUR)
def test_the_floor_of_real_references_is_almost_zero(language: str, shared_data: Path) -> None:
    """The measured rate is 0 of 1,000 in every language (999 Czech lines are long enough)."""
    lines = list(read_lines(shared_data / "multi30k" / f"test.{language}.gz"))
    share, counts = off_target(lines, language, FOUR)
    assert counts.total() >= 0.99 * len(lines)
    assert share is not None
    assert share <= 0.002
    for other in set(FOUR) - {language}:
        wrong, _ = off_target(lines, other, FOUR)
        assert wrong is not None
        assert wrong >= 0.998
