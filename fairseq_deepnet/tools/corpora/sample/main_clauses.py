"""Random sentence pairs of the sample corpus: statements and questions of one clause.

Ambiguity is kept out here and in `sentences`, so that a German sentence has one right translation:
an object stands first, and a relative clause is built, only where a case ending or the meaning of
the verb says who does what; a pronoun of the third person refers to one noun only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fairseq_deepnet.tools.corpora.sample import phrases
from fairseq_deepnet.tools.corpora.sample.choices import (
    EVERYONE,
    INTRANSITIVE,
    TRANSITIVE,
    PhraseSampler,
    is_masculine,
)
from fairseq_deepnet.tools.corpora.sample.clauses import Clause, Place, english, german, sentence
from fairseq_deepnet.tools.corpora.sample.lexicon import VERBS
from fairseq_deepnet.tools.corpora.sample.phrases import Phrase

SEIN = VERBS["sein"]
PLAIN_TENSES = ("present", "present", "past")


@dataclass(frozen=True)
class Pair:
    """A German sentence, its English translation, and the combinations of words that it holds."""

    german: str
    english: str
    combinations: tuple[str, ...] = ()


def make_pair(
    german_words: list[str], english_words: list[str], *clauses: Clause, end: str = "."
) -> Pair:
    """A pair of sentences from the words of its clauses, with their combinations."""
    combinations = tuple(c for clause in clauses for c in clause.combinations)
    return Pair(sentence(german_words, end), sentence(english_words, end), combinations)


def refers_clearly(phrase: Phrase) -> bool:
    """Whether a pronoun for it is beyond doubt in English: a child or a girl (es) is not."""
    return phrase.plural or phrase.kind != "p" or phrase.gender != "n"


def front_options(clause: Clause) -> list[str]:
    """What may stand first in a German main clause without doubt about who does what."""
    options = ["subject"] * 3
    if clause.time:
        options += ["time"] * 3
    if clause.place:
        options.append("place")
    accusative, dative = clause.accusative, clause.dative
    plain = ("mein", "unser", "d")  # sein and ihr would stand before their owner
    if accusative:
        noun = accusative.definite and not accusative.pronoun
        if noun and is_masculine(accusative) and accusative.german[0].startswith(plain):
            options += ["accusative"] * 2
    elif dative:
        marked = not dative.pronoun and not dative.plural and dative.gender != "f"
        if marked and dative.german[0].startswith(plain):
            options += ["dative"] * 2
    return options


class MainClauseSampler(PhraseSampler):
    """Draws sentence pairs of one clause."""

    def statement(self) -> Pair:
        """A main clause, perhaps with something else than its subject in front."""
        return self.stated(self.clause())

    def stated(self, clause: Clause) -> Pair:
        """The pair of a main clause, with a random part in front."""
        front = self.random.choice(front_options(clause))
        return make_pair(german(clause, front=front), english(clause, front=front), clause)

    def plainly_stated(self, clause: Clause) -> Pair:
        """The pair of a main clause with its subject in front."""
        return make_pair(german(clause), english(clause), clause)

    def described(
        self, subject: Phrase, tense: str, *, negation: float = 0.0, noun: str = ""
    ) -> Clause:
        """What a subject is like; `noun` is what the combination names, none for a pronoun."""
        adjective = self.adjective(subject.kind)
        while adjective.english in subject.english[0].split():
            adjective = self.adjective(subject.kind)
        clause = Clause(
            subject,
            SEIN,
            tense=tense,
            predicate=(adjective.word, adjective.english),
            negated=subject.definite and self.chance(negation),
        )
        if noun:
            clause = replace(clause, predicate_combination=f"adjective:{adjective.word}:{noun}")
        return clause

    def description(self) -> Pair:
        """What somebody or something is like, or how old."""
        tense = self.random.choice(("present", "present", "past", "future"))
        if self.chance(0.35):
            number = self.number()
            subject = self.subject("pa", EVERYONE, definite=True)
            age = (
                f"{phrases.german_number(number)} Jahre alt",
                f"{phrases.english_number(number)} years old",
            )
            combination = f"number:{number}:Jahr"
            clause = Clause(subject, SEIN, tense, predicate=age, predicate_combination=combination)
            return self.stated(clause)
        kinds = self.random.choice(("p", "p", "a", "tg", "w", "c", "fmd", "lr"))
        if kinds == "p" and self.chance(0.3):
            subject = self.random.choice(EVERYONE)
        else:
            subject = self.phrase(kinds, definite=True, counted=False, adjectives=0)
        noun = subject.german[0].split()[-1]
        clause = self.described(subject, tense, negation=0.3, noun="" if subject.pronoun else noun)
        alive = subject.kind in "pa"
        return self.stated(self.adorned(clause, tense, place=False) if alive else clause)

    def position(self) -> Pair:
        """Where a thing lies or stands, or where somebody puts it."""
        tense = self.random.choice(PLAIN_TENSES)
        if self.chance(0.5):
            verb = VERBS["legen"]
            subject = self.subject("p", EVERYONE)
            thing = self.phrase(verb.accusative, owner=subject, verb=verb)
            where = self._surface_beside(thing, phrases.ACCUSATIVE)
            return self.stated(Clause(subject, verb, tense, accusative=thing, place=where))
        verb = VERBS[self.random.choice(("liegen", "stehen"))]
        subject = self.phrase(verb.subjects, definite=True)
        where = self._surface_beside(subject, phrases.DATIVE)
        return self.stated(Clause(subject, verb, tense, place=where))

    def _surface_beside(self, thing: Phrase, case: int) -> Place:
        """Furniture that is not the thing itself."""
        where = self.surface(case)
        while where.german.split()[-1].lower()[:5] in thing.german[0].lower():
            where = self.surface(case)
        return where

    def possession(self) -> Pair:
        """To whom a thing belongs, or who likes it: German and English subject change places."""
        verb = VERBS[self.random.choice(("gehören", "gefallen"))]
        thing = self.phrase(verb.subjects, definite=True, counted=False, verb=verb)
        person = self.phrase("p", definite=True, counted=False)
        if self.chance(0.35):
            person = self.random.choice(EVERYONE)
        tense = self.random.choice(PLAIN_TENSES)
        clause = Clause(thing, verb, tense, dative=person, negated=self.chance(0.3))
        return self.stated(clause)

    def existence(self) -> Pair:
        """What there is somewhere."""
        phrase = self.phrase("patg")
        while phrase.definite:
            phrase = self.phrase("patg")
        place = self.place()
        be = "are" if phrase.plural else "is"
        return Pair(
            sentence([place.german, "gibt es", phrase.german[1]]),
            sentence(["there", be, phrase.english[0], place.english]),
            phrase.combinations + place.combinations,
        )

    def question(self) -> Pair:
        """A question that is answered with yes or no."""
        clause = self.clause(negation=0)
        words = german(clause, "inverted")
        return make_pair(words, english(clause, question=True), clause, end="?")

    def question_word(self) -> Pair:
        """A question for the subject, the object, or an adverbial."""
        word = self.random.choice(("wer", "was", "wo", "wann", "warum"))
        if word == "wer":
            clause = self.clause(subject=phrases.WER, negation=0)
            return make_pair(german(clause), english(clause), clause, end="?")
        if word == "was":
            verbs = [v for v in TRANSITIVE if not set(v.accusative) & set("pa")]
            clause = self.clause(verbs=verbs, negation=0)
            clause = replace(clause, accusative=None)
            translation = "what"
        else:
            clause = replace(self.clause(negation=0), frequency=None)
            if word == "wo":
                clause = self.clause(verbs=INTRANSITIVE, negation=0)
                clause = replace(clause, place=None, frequency=None)
            if word == "wann":
                clause = replace(clause, time=None, werden=True)
            translation = {"wo": "where", "wann": "when", "warum": "why"}[word]
        words = german(clause, front=word)
        return make_pair(words, [translation, *english(clause, question=True)], clause, end="?")

    def where_is(self) -> Pair:
        """A question, and an answer with a pronoun."""
        verb = VERBS[self.random.choice(("liegen", "stehen"))]
        thing = self.phrase(verb.subjects, definite=True, counted=False)
        asked = Clause(thing, SEIN)
        answer = Clause(
            phrases.pronoun_for(thing), verb, place=self._surface_beside(thing, phrases.DATIVE)
        )
        question = make_pair(
            german(asked, front="wo"), ["where", *english(asked, question=True)], asked, end="?"
        )
        reply = self.plainly_stated(answer)
        return Pair(
            f"{question.german} {reply.german}",
            f"{question.english} {reply.english}",
            question.combinations + reply.combinations,
        )
