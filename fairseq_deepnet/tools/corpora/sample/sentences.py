"""Random sentence pairs of the sample corpus: two clauses, relative clauses, and the choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fairseq_deepnet.tools.corpora.sample import phrases
from fairseq_deepnet.tools.corpora.sample.choices import (
    EVERYONE,
    INTRANSITIVE,
    SPEAKERS,
    TRANSITIVE,
    is_masculine,
)
from fairseq_deepnet.tools.corpora.sample.clauses import Clause, english, german
from fairseq_deepnet.tools.corpora.sample.lexicon import VERBS, Verb
from fairseq_deepnet.tools.corpora.sample.main_clauses import (
    PLAIN_TENSES,
    MainClauseSampler,
    Pair,
    make_pair,
    refers_clearly,
)
from fairseq_deepnet.tools.corpora.sample.phrases import Phrase

# verbs whose object may be named again, or stand as a relative pronoun; haben has no place there
_ON_THINGS = [v for v in TRANSITIVE if v.infinitive != "haben" and v.auxiliary == "haben"]
_DATIVE = [VERBS["helfen"], VERBS["danken"]]
_RELATIVE_TENSES = ("present", "present", "past", "m")
_ROLES = {
    "p": (phrases.NOMINATIVE, phrases.NOMINATIVE, phrases.ACCUSATIVE, phrases.DATIVE),
    "a": (phrases.NOMINATIVE, phrases.NOMINATIVE, phrases.ACCUSATIVE),
}  # a thing does nothing
_RELATIVE = {
    "m": ("der", "den", "dem"),
    "f": ("die", "die", "der"),
    "n": ("das", "das", "dem"),
    "p": ("die", "die", "denen"),
}


class SentenceSampler(MainClauseSampler):
    """Draws sentence pairs."""

    def pair(self) -> Pair:
        """A sentence pair of a random construction."""
        constructions: dict[Callable[[], Pair], int] = {
            self.statement: 26,
            self.description: 9,
            self.position: 6,
            self.possession: 5,
            self.existence: 3,
            self.question: 6,
            self.question_word: 6,
            self.subordinate: 9,
            self.subordinate_first: 6,
            self.content: 7,
            self.reason: 6,
            self.reason_first: 3,
            self.sequence: 6,
            self.relative_subject: 8,
            self.relative_object: 4,
            self.where_is: 3,
        }
        return self.random.choices(list(constructions), list(constructions.values()))[0]()

    def _pair_of_clauses(self) -> tuple[tuple[str, str], Clause, Clause]:
        """A conjunction, a main clause and a subordinate clause whose tenses go together."""
        conjunction = self.random.choice(
            (("weil", "because"), ("weil", "because"), ("obwohl", "although"), ("wenn", "if"))
        )
        tenses: tuple[str, ...] = ("past",) if self.chance(0.3) else ("present", "present", "m")
        if conjunction[0] == "wenn":
            tenses = ("present", "present", "m")
        main = self._short_clause(tenses)
        if self.chance(0.15):
            verb = VERBS[self.random.choice(("regnen", "schneien"))]
            tense = "past" if tenses == ("past",) else "present"
            return conjunction, main, Clause(phrases.ES, verb, tense)
        return conjunction, main, self._short_clause(tenses)

    def _short_clause(self, tenses: tuple[str, ...]) -> Clause:
        """One of two clauses: seldom with adverbials, never with er, sie or es as its subject."""
        adverbials = self.chance(0.3)
        return self.clause(pronouns=SPEAKERS, tenses=tenses, adverbials=adverbials, negation=0.15)

    def subordinate(self) -> Pair:
        """A main clause, then a subordinate clause with its verb at the end."""
        (word, translation), main, side = self._pair_of_clauses()
        return make_pair(
            [*german(main), ",", word, *german(side, "final")],
            [*english(main), translation, *english(side)],
            main,
            side,
        )

    def subordinate_first(self) -> Pair:
        """A subordinate clause, then the main clause, which begins with its verb."""
        (word, translation), main, side = self._pair_of_clauses()
        return make_pair(
            [word, *german(side, "final"), ",", *german(main, "inverted")],
            [translation, *english(side), ",", *english(main)],
            main,
            side,
        )

    def content(self) -> Pair:
        """What somebody knows, says or believes; or does not know."""
        verb = VERBS[self.random.choice(("wissen", "sagen", "glauben"))]
        subject = self.subject("p", SPEAKERS, definite=True)
        unsure = verb.infinitive == "wissen" and self.chance(0.5)
        main = Clause(subject, verb, negated=unsure)
        side = self._short_clause(("present", "present", "past", "m", "future"))
        word, translation = ("ob", "whether") if unsure else ("dass", "that")
        return make_pair(
            [*german(main), ",", word, *german(side, "final")],
            [*english(main), translation, *english(side)],
            main,
            side,
        )

    def _described_main(self, verbs: list[Verb]) -> tuple[Clause, Clause]:
        """A clause, and one that says of its subject or object, with a pronoun, what it is like."""
        while True:
            tense = self.random.choice(("present", "past"))
            main = self.clause(
                verbs=verbs, pronouns=SPEAKERS, tenses=(tense,), adverbials=False, negation=0
            )
            candidates = [p for p in (main.subject, main.accusative) if p and not p.pronoun]
            nouns = [p for p in candidates if refers_clearly(p)]
            pronouns = {phrases.pronoun_for(p).german[0] for p in candidates}
            if nouns and len(nouns) == len(candidates) == len(pronouns):
                topic = self.random.choice(nouns)
                return main, self.described(phrases.pronoun_for(topic), tense)

    def reason(self) -> Pair:
        """A reason with a pronoun for the subject or the object of the main clause."""
        main, side = self._described_main(INTRANSITIVE if self.chance(0.3) else TRANSITIVE)
        return make_pair(
            [*german(main), ",", "weil", *german(side, "final")],
            [*english(main), "because", *english(side)],
            main,
            side,
        )

    def reason_first(self) -> Pair:
        """A reason first; the main clause refers to its subject with a pronoun."""
        tense = self.random.choice(("present", "past"))
        subject = self.phrase("pa", definite=True, counted=False, adjectives=0)
        while not refers_clearly(subject):
            subject = self.phrase("pa", definite=True, counted=False, adjectives=0)
        side = self.described(subject, tense)
        main = self.clause(
            subject=phrases.pronoun_for(subject),
            tenses=(tense,),
            adverbials=self.chance(0.3),
            negation=0.15,
        )
        return make_pair(
            ["weil", *german(side, "final"), ",", *german(main, "inverted")],
            ["because", *english(side), ",", *english(main)],
            side,
            main,
        )

    def sequence(self) -> Pair:
        """Two actions of one subject on one object, which the second names with a pronoun."""
        tense = self.random.choice(("present", "past"))
        first = self.clause(verbs=_ON_THINGS, tenses=(tense,), negation=0, adverbials=False)
        thing = first.accusative
        while thing is None or thing.pronoun or not refers_clearly(thing):
            first = self.clause(verbs=_ON_THINGS, tenses=(tense,), negation=0, adverbials=False)
            thing = first.accusative
        verbs = [v for v in _ON_THINGS if thing.kind in v.accusative and v != first.verb]
        second = replace(
            first,
            verb=self.random.choice(verbs),
            accusative=replace(phrases.pronoun_for(thing), combinations=()),
        )
        # Without the subject; in the perfect without the auxiliary too: hat gefunden und genommen.
        shared = 2 if tense == "past" else 1
        return make_pair(
            [*german(first), "und", *german(second)[shared:]],
            [*english(first), "and", *english(second)[1:]],
            first,
            second,
        )

    def _relative(self, head: Phrase) -> Phrase:
        """The phrase with a relative clause after it."""
        index = "p" if head.plural else head.gender
        who = "who" if head.kind == "p" else "that"
        whom = "whom" if head.kind == "p" else "that"
        marked = is_masculine(head)
        while True:
            role = self.random.choice(_ROLES.get(head.kind, (phrases.ACCUSATIVE,)))
            pronoun = _RELATIVE[index][role]
            if role == phrases.NOMINATIVE:
                subject = replace(
                    head, german=(pronoun,) * 3, english=(who, who), combinations=(), definite=True
                )
                clause = self.clause(subject=subject, tenses=_RELATIVE_TENSES, adverbials=False)
                other = clause.accusative
                clear = other is None or other.kind not in "pa" or is_masculine(other)
                if marked or clear:
                    words, translation = german(clause, "final"), english(clause)
                    break
                continue
            verbs = _DATIVE if role == phrases.DATIVE else _ON_THINGS
            verbs = [v for v in verbs if head.kind in v.accusative + v.dative]
            clause = self.clause(
                verbs=verbs,
                pronouns=SPEAKERS,
                tenses=_RELATIVE_TENSES,
                adverbials=False,
                negation=0,
            )
            subject = clause.subject
            clear = subject.pronoun or is_masculine(subject) or head.kind not in "pa"
            if role == phrases.DATIVE or marked or clear:
                clause = replace(clause, accusative=None, dative=None)
                words = [pronoun, *german(clause, "final")]
                translation = [whom, *english(clause)]
                break
        combinations = head.combinations + clause.combinations
        return phrases.with_relative(head, words, translation, combinations)

    def relative_subject(self) -> Pair:
        """A subject with a relative clause, before its verb."""
        head = self.phrase(self.random.choice(("p", "p", "a", "twc")), adjectives=0.2)
        subject = self._relative(head)
        if self.chance(0.5) or head.kind not in "pa":
            return self.plainly_stated(self.described(subject, self.random.choice(PLAIN_TENSES)))
        return self.plainly_stated(
            self.clause(subject=subject, tenses=_RELATIVE_TENSES, negation=0)
        )

    def relative_object(self) -> Pair:
        """An object with a relative clause, at the end of the sentence."""
        clause = self.clause(
            verbs=_ON_THINGS, pronouns=EVERYONE, tenses=("present",), adverbials=False, negation=0
        )
        if clause.accusative is None or clause.accusative.pronoun or clause.verb.prefix:
            return self.relative_object()
        accusative = self._relative(clause.accusative)
        return self.plainly_stated(replace(clause, accusative=accusative))
