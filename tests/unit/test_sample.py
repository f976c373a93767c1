"""The sample corpus: grammar against hand-written pairs, one translation each, splits apart."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fairseq_deepnet.tools.corpora import sample
from fairseq_deepnet.tools.corpora.sample import phrases
from fairseq_deepnet.tools.corpora.sample.clauses import Clause, Place, english, german, sentence
from fairseq_deepnet.tools.corpora.sample.corpus import (
    SPLITS,
    generate,
    split_of,
    split_of_combination,
    write,
)
from fairseq_deepnet.tools.corpora.sample.lexicon import ADJECTIVES, COMPOUNDS, NOUNS, VERBS
from fairseq_deepnet.tools.corpora.sample.main_clauses import front_options
from fairseq_deepnet.tools.corpora.sample.phrases import Phrase, noun_phrase, pronoun_for
from fairseq_deepnet.tools.corpora.sample.sentences import SentenceSampler

ROOT = Path(__file__).resolve().parents[2]
SIZES = {"train": 300, "valid": 40, "test": 60}


def np(words: str, adjective: str = "", **options: object) -> Phrase:
    """A noun phrase from "determiner noun", in the plural where a noun's plural is given."""
    determiner, noun = words.split()
    found = next(n for n in NOUNS.values() if noun in (n.singular, n.plural))
    plural = bool(options.pop("plural", noun != found.singular))
    number = options.pop("number", 0)
    return noun_phrase(
        found,
        determiner,
        plural=plural,
        adjective=ADJECTIVES[adjective] if adjective else None,
        number=number,  # type: ignore[arg-type]
        **options,  # type: ignore[arg-type]
    )


def said(clause: Clause, order: str = "main", front: str = "subject") -> tuple[str, str]:
    end = "?" if order == "inverted" else "."
    words = english(clause, question=order == "inverted", front=front)
    return sentence(german(clause, order, front), end), sentence(words, end)


MAN, WOMAN = np("der Mann"), np("der Frau")
KEY = np("ein Schlüssel")
TODAY, TOMORROW = ("heute", "today"), ("morgen", "tomorrow")
GARDEN = Place("im Garten", "in the garden")

STATEMENTS = [
    (
        "accusative_and_adjective_ending",
        Clause(MAN, VERBS["essen"], accusative=np("ein Apfel", "rot")),
        "subject",
        ("Der Mann isst einen roten Apfel.", "The man eats a red apple."),
    ),
    (
        "plural_agreement_and_an",
        Clause(np("viele Frauen"), VERBS["kaufen"], accusative=np("ein Ei")),
        "subject",
        ("Viele Frauen kaufen ein Ei.", "Many women buy an egg."),
    ),
    (
        "dative_plural_and_verb_second_after_time",
        Clause(
            MAN,
            VERBS["geben"],
            accusative=np("der Buch"),
            dative=np("der Kinder", "klein"),
            time=TODAY,
        ),
        "time",
        (
            "Heute gibt der Mann den kleinen Kindern das Buch.",
            "Today the man gives the small children the book.",
        ),
    ),
    (
        "object_first",
        Clause(WOMAN, VERBS["sehen"], accusative=np("der Löwe")),
        "accusative",
        ("Den Löwen sieht die Frau.", "The woman sees the lion."),
    ),
    (
        "separable_verb",
        Clause(WOMAN, VERBS["abholen"], accusative=KEY),
        "subject",
        ("Die Frau holt einen Schlüssel ab.", "The woman picks up a key."),
    ),
    (
        "separable_verb_with_pronoun",
        Clause(WOMAN, VERBS["abholen"], accusative=pronoun_for(KEY)),
        "subject",
        ("Die Frau holt ihn ab.", "The woman picks it up."),
    ),
    (
        "perfect_with_haben",
        Clause(MAN, VERBS["trinken"], "past", accusative=np("bare Wasser", "kalt")),
        "subject",
        ("Der Mann hat kaltes Wasser getrunken.", "The man drank cold water."),
    ),
    (
        "perfect_with_sein",
        Clause(
            np("der Mädchen", plural=True),
            VERBS["laufen"],
            "past",
            place=Place("in den Garten", "into the garden", direction=True),
        ),
        "subject",
        ("Die Mädchen sind in den Garten gelaufen.", "The girls ran into the garden."),
    ),
    (
        "modal_verb",
        Clause(phrases.DU, VERBS["anrufen"], modal="müssen", accusative=phrases.ER, negated=True),
        "subject",
        ("Du musst ihn nicht anrufen.", "You do not have to phone him."),
    ),
    (
        "modal_verb_that_forbids",
        Clause(phrases.IHR, VERBS["schlafen"], modal="dürfen", negated=True, place=GARDEN),
        "subject",
        ("Ihr dürft nicht im Garten schlafen.", "You must not sleep in the garden."),
    ),
    (
        "future_without_werden",
        Clause(phrases.ER, VERBS["aufstehen"], "future", time=TOMORROW, werden=False),
        "subject",
        ("Er steht morgen auf.", "He will get up tomorrow."),
    ),
    (
        "future_with_werden",
        Clause(phrases.ICH, VERBS["ankommen"], "future", time=TOMORROW),
        "time",
        ("Morgen werde ich ankommen.", "Tomorrow I will arrive."),
    ),
    (
        "number",
        Clause(phrases.WIR, VERBS["lesen"], accusative=np("number Bücher", number=21)),
        "subject",
        ("Wir lesen einundzwanzig Bücher.", "We read twenty-one books."),
    ),
    (
        "kein",
        Clause(MAN, VERBS["kaufen"], accusative=np("ein Hut"), negated=True),
        "subject",
        ("Der Mann kauft keinen Hut.", "The man does not buy a hat."),
    ),
    (
        "kein_plural",
        Clause(MAN, VERBS["kaufen"], "past", accusative=np("bare Eier", "frisch"), negated=True),
        "subject",
        ("Der Mann hat keine frischen Eier gekauft.", "The man did not buy any fresh eggs."),
    ),
    (
        "nicht",
        Clause(WOMAN, VERBS["lesen"], accusative=np("dieser Brief"), negated=True),
        "subject",
        ("Die Frau liest diesen Brief nicht.", "The woman does not read this letter."),
    ),
    (
        "subject_and_object_change_places",
        Clause(np("der Häuser"), VERBS["gefallen"], dative=phrases.ICH),
        "subject",
        ("Die Häuser gefallen mir.", "I like the houses."),
    ),
    (
        "possessive_of_the_subject",
        Clause(phrases.SIE_PLURAL, VERBS["suchen"], accusative=np("ihr Hund", their=True)),
        "subject",
        ("Sie suchen ihren Hund.", "They look for their dog."),
    ),
    (
        "weak_noun_in_the_dative",
        Clause(phrases.SIE, VERBS["helfen"], dative=np("ein Student", "müde")),
        "subject",
        ("Sie hilft einem müden Studenten.", "She helps a tired student."),
    ),
    (
        "copula_in_the_past",
        Clause(np("unser Katzen"), VERBS["sein"], "past", predicate=("hungrig", "hungry")),
        "subject",
        ("Unsere Katzen waren hungrig.", "Our cats were hungry."),
    ),
    (
        "frequency_and_place_before_what_is_new",
        Clause(
            MAN,
            VERBS["kaufen"],
            accusative=np("ein Auto"),
            frequency=("nie", "never"),
            place=GARDEN,
        ),
        "place",
        ("Im Garten kauft der Mann nie ein Auto.", "The man never buys a car in the garden."),
    ),
]


@pytest.mark.parametrize(
    ("clause", "front", "expected"), [s[1:] for s in STATEMENTS], ids=[s[0] for s in STATEMENTS]
)
def test_a_main_clause_is_right_in_both_languages(
    clause: Clause, front: str, expected: tuple[str, str]
) -> None:
    assert said(clause, front=front) == expected


def test_compounds_inflect_at_their_end() -> None:
    table = phrases.compound("Küchen", "kitchen", NOUNS["Tisch"])
    clause = Clause(noun_phrase(table, "der", plural=True), VERBS["stehen"], place=GARDEN)
    assert said(clause) == (
        "Die Küchentische stehen im Garten.",
        "The kitchen tables stand in the garden.",
    )


def test_questions_need_do_in_english() -> None:
    clause = Clause(WOMAN, VERBS["verkaufen"], "past", accusative=np("mein Fahrrad"))
    assert said(clause, "inverted") == (
        "Hat die Frau mein Fahrrad verkauft?",
        "Did the woman sell my bicycle?",
    )


def test_the_verb_stands_last_in_a_subordinate_clause() -> None:
    clause = Clause(phrases.ICH, VERBS["anrufen"], accusative=np("der Ärztin"), time=TODAY)
    assert german(clause, "final") == ["ich", "heute", "die Ärztin", "anrufe"]
    past = Clause(phrases.ICH, VERBS["anrufen"], "past", accusative=np("der Ärztin"))
    assert german(past, "final") == ["ich", "die Ärztin", "angerufen", "habe"]


def test_a_pronoun_follows_gender_in_german_and_nature_in_english() -> None:
    table, teacher, cats = np("der Tisch"), np("der Lehrerin"), np("der Katzen")
    assert (pronoun_for(table).german[1], pronoun_for(table).english[1]) == ("ihn", "it")
    assert (pronoun_for(teacher).german[0], pronoun_for(teacher).english[0]) == ("sie", "she")
    assert (pronoun_for(cats).german[2], pronoun_for(cats).english[1]) == ("ihnen", "them")


def test_a_relative_clause_stands_behind_its_noun() -> None:
    head = phrases.with_relative(np("der Mann"), ["der", "schläft"], ["who", "sleeps"], ())
    clause = Clause(head, VERBS["sein"], predicate=("alt", "old"))
    assert said(clause) == ("Der Mann, der schläft, ist alt.", "The man who sleeps is old.")


@pytest.mark.parametrize(
    ("number", "german_word", "english_word"),
    [
        (2, "zwei", "two"),
        (12, "zwölf", "twelve"),
        (16, "sechzehn", "sixteen"),
        (17, "siebzehn", "seventeen"),
        (20, "zwanzig", "twenty"),
        (30, "dreißig", "thirty"),
        (31, "einunddreißig", "thirty-one"),
        (76, "sechsundsiebzig", "seventy-six"),
        (99, "neunundneunzig", "ninety-nine"),
    ],
)
def test_numbers(number: int, german_word: str, english_word: str) -> None:
    assert phrases.german_number(number) == german_word
    assert phrases.english_number(number) == english_word


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("apple", "an apple"),
        ("honest man", "an honest man"),
        ("useful book", "a useful book"),
        ("hotel", "a hotel"),
    ],
)
def test_the_article_follows_the_sound(words: str, expected: str) -> None:
    assert phrases.with_article(words) == expected


def test_an_object_stands_first_only_where_its_case_shows() -> None:
    masculine, feminine = np("der Hund"), np("der Katze")
    assert "accusative" in front_options(Clause(MAN, VERBS["sehen"], accusative=masculine))
    assert "accusative" not in front_options(Clause(MAN, VERBS["sehen"], accusative=feminine))
    # "ihren Hund sucht die Frau": the owner comes too late
    own = np("ihr Hund")
    assert "accusative" not in front_options(Clause(WOMAN, VERBS["suchen"], accusative=own))


def test_a_german_sentence_never_has_two_translations() -> None:
    sampler = SentenceSampler(11)
    translations: dict[str, str] = {}
    for _ in range(100_000):
        pair = sampler.pair()
        assert translations.setdefault(pair.german, pair.english) == pair.english


def test_every_word_of_the_lexicon_is_used() -> None:
    sampler = SentenceSampler(5)
    words = Counter(w for _ in range(20_000) for w in sampler.pair().german.strip(".?").split())
    folded = {word.strip(",.?").lower() for word in words}
    assert not [n for n in NOUNS if n.lower() not in folded]
    assert not [a for a, entry in ADJECTIVES.items() if entry.stem + "en" not in folded]
    unused = [v for v, entry in VERBS.items() if not {v, entry.participle} & folded]
    assert set(unused) <= {"gehören", "gefallen", "sagen", "glauben", "wissen", "sein"}
    modifiers = [modifier.lower() for modifier_of, _ in COMPOUNDS for modifier in modifier_of]
    assert all(any(w.startswith(m) and w != m for w in folded) for m in modifiers)


def test_the_same_seed_gives_the_same_corpus_and_another_seed_another() -> None:
    assert generate(3, SIZES) == generate(3, SIZES)
    assert generate(3, SIZES)["test"] != generate(4, SIZES)["test"]


@pytest.mark.parametrize("hash_seed", ["0", "77"])
def test_the_corpus_does_not_depend_on_the_hash_seed(tmp_path: Path, hash_seed: str) -> None:
    script = (
        "from fairseq_deepnet.tools.corpora.sample.corpus import generate; "
        "found = generate(3, {'train': 20, 'valid': 3, 'test': 3})['train']; "
        "print(ascii([p.german for p in found]))"  # in any locale
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    expected = [p.german for p in generate(3, {"train": 20, "valid": 3, "test": 3})["train"]]
    assert result.stdout.strip() == ascii(expected)


def test_no_sentence_is_in_two_splits_or_twice_in_one() -> None:
    corpus = generate(1, SIZES)
    sentences = [pair.german for split in SPLITS for pair in corpus[split]]
    assert len(set(sentences)) == len(sentences) == sum(SIZES.values())


def test_held_out_combinations_never_occur_in_train() -> None:
    corpus = generate(1, SIZES)
    in_train = {c for pair in corpus["train"] for c in pair.combinations}
    assert {split_of_combination(c) for c in in_train} == {"train"}
    for split in ("valid", "test"):
        assert all(split_of(pair) == split for pair in corpus[split])
        assert all(set(pair.combinations) - in_train for pair in corpus[split])
        kinds = {c.split(":")[0] for pair in corpus[split] for c in pair.combinations}
        assert kinds == {"adjective", "object", "compound", "number"}


def test_files_have_as_many_lines_as_asked_for_and_appear_at_once(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    sample.add_arguments(parser)
    out = tmp_path / "new" / "corpus"
    sizes = [word for split, size in SIZES.items() for word in (f"--{split}", str(size))]
    assert sample.run(parser.parse_args(["--out", str(out), "--seed", "2", *sizes])) == 0
    for split, size in SIZES.items():
        for language in ("de", "en"):
            text = (out / f"{split}.{language}").read_text(encoding="utf-8")
            assert text.count("\n") == size
            assert text.endswith("\n")
    assert [path.name for path in out.parent.iterdir()] == ["corpus"]


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep", encoding="utf-8")
    with pytest.raises(ValueError, match="not an empty folder"):
        write(generate(1, {"train": 2, "valid": 1, "test": 1}), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="--valid 0"):
        generate(1, {"train": 5, "valid": 0, "test": 5})
