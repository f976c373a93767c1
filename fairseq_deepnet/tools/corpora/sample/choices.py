"""Random phrases and clauses of the sample corpus: which words go together."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from fairseq_deepnet.tools.corpora.sample import clauses, phrases
from fairseq_deepnet.tools.corpora.sample.clauses import Clause, Place
from fairseq_deepnet.tools.corpora.sample.lexicon import (
    ADJECTIVES,
    COMPOUNDS,
    FREQUENCIES,
    NOUNS,
    TIMES,
    VERBS,
    Adjective,
    Noun,
    Verb,
)
from fairseq_deepnet.tools.corpora.sample.phrases import Phrase

SPEAKERS = (phrases.ICH, phrases.DU, phrases.WIR, phrases.IHR)
EVERYONE = (*SPEAKERS, phrases.ER, phrases.SIE, phrases.SIE_PLURAL)
MOTION = ("gehen", "laufen", "fahren", "kommen")
_STATES = ("haben", "brauchen", "lieben")  # not with a modal verb
# verbs with sentence patterns of their own
_APART = "wissen sagen glauben liegen stehen regnen schneien legen sein gehören gefallen"
_ACTIONS = [v for v in VERBS.values() if v.infinitive not in _APART.split()]
INTRANSITIVE = [v for v in _ACTIONS if not v.accusative + v.dative and v.infinitive not in MOTION]
TRANSITIVE = [v for v in _ACTIONS if v.accusative and not v.dative]
_DATIVE = [v for v in _ACTIONS if v.dative and not v.accusative]
_GIVING = [v for v in _ACTIONS if v.dative and v.accusative]
_SURFACE_PREPOSITIONS = (
    ("auf", "on"),
    ("auf", "on"),
    ("unter", "under"),
    ("neben", "next to"),
    ("hinter", "behind"),
    ("vor", "in front of"),
)
_CONTRACTIONS = {"in dem": "im", "in das": "ins", "zu dem": "zum", "zu der": "zur"}

# Determiners and their weights, for nouns that are counted (one, several) and others.
_SINGULAR = {"der": 8, "ein": 6, "dieser": 2, "mein": 1, "dein": 1, "unser": 1}
_PLURAL = {"der": 7, "dieser": 2, "mein": 1, "dein": 1, "unser": 1}
_MASS = {"bare": 5, "der": 4, "dieser": 1, "mein": 1, "unser": 1}


def of_kinds(kinds: str) -> list[Noun]:
    """The nouns of any of these kinds, in the order of the lexicon."""
    return [n for n in NOUNS.values() if set(n.kinds) & set(kinds)]


def is_masculine(phrase: Phrase) -> bool:
    """Whether its form tells nominative from accusative: a masculine singular."""
    return phrase.gender == "m" and not phrase.plural


class PhraseSampler:
    """Draws phrases and clauses from a seeded random number generator."""

    def __init__(self, seed: int | str) -> None:
        self.random = Random(seed)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.random.random() < probability

    def noun(self, kinds: str) -> tuple[Noun, tuple[str, ...]]:
        """A noun of one of these kinds, perhaps in a compound, and that combination."""
        noun = self.random.choice(of_kinds(kinds))
        for modifiers, heads in COMPOUNDS:
            if noun.singular in heads.split() and self.chance(0.3):
                modifier, translation = self.random.choice(list(modifiers.items()))
                combination = f"compound:{modifier}:{noun.singular}"
                return phrases.compound(modifier, translation, noun), (combination,)
        return noun, ()

    def adjective(self, kinds: str) -> Adjective:
        """An adjective that goes with one of these kinds of noun."""
        return self.random.choice([a for a in ADJECTIVES.values() if set(a.kinds) & set(kinds)])

    def number(self) -> int:
        """A number from 2 to 99, small ones more often."""
        return self.random.randint(2, 12) if self.chance(0.6) else self.random.randint(13, 99)

    def phrase(
        self,
        kinds: str,
        *,
        definite: bool = False,
        counted: bool = True,
        owner: Phrase | None = None,
        verb: Verb | None = None,
        singular: bool = False,
        adjectives: float = 0.25,
    ) -> Phrase:
        """A noun phrase.

        Args:
            definite: whether ein and a bare noun are excluded.
            counted: whether jeder, viele and numbers may stand before it.
            owner: the subject of its clause, whose possessive it may carry.
            verb: the verb whose object it is.
            adjectives: how likely an attribute is.
        """
        noun, combinations = self.noun(kinds)
        plural = bool(noun.plural) and not singular and self.chance(0.4)
        weights = dict((_PLURAL if plural else _SINGULAR) if noun.plural else _MASS)
        if definite:
            weights.pop("ein", None)
            weights.pop("bare", None)
        elif plural and noun.plural != noun.singular:
            weights["bare"] = 2
        if counted and noun.plural:
            weights |= {"number": 5, "viele": 2} if plural else {"jeder": 1}
        possessive = _possessive_of(owner)
        if possessive:
            weights[possessive] = 3
        if noun.singular in ("Mann", "Frau"):  # with a possessive: husband, wife
            weights = {d: w for d, w in weights.items() if d not in phrases.POSSESSIVES}
        determiner = self.random.choices(list(weights), list(weights.values()))[0]
        phrase = phrases.noun_phrase(
            noun,
            determiner,
            plural=plural,
            adjective=self.adjective(noun.kinds) if self.chance(adjectives) else None,
            number=self.number() if determiner == "number" else 0,
            their=owner is not None and owner.plural,
        )
        if verb:
            combinations += (f"object:{verb.infinitive}:{noun.singular}",)
        return replace(phrase, combinations=phrase.combinations + combinations)

    def subject(
        self, kinds: str, pronouns: tuple[Phrase, ...], *, definite: bool = False
    ) -> Phrase:
        """A subject: a pronoun, two people, or a noun phrase; `definite` rules out counted ones."""
        if "p" in kinds and self.chance(0.3):
            return self.random.choice(pronouns)
        if "p" in kinds and self.chance(0.08):
            first, second = (
                self.phrase("p", definite=True, counted=False, singular=True) for _ in "ab"
            )
            if first.german[0].split()[-1] != second.german[0].split()[-1]:
                return phrases.both(first, second)
        return self.phrase(kinds, definite=definite, counted=not definite)

    def _placed(
        self, preposition: str, translation: str, kinds: str, case: int, direction: bool = False
    ) -> Place:
        phrase = self.phrase(kinds, counted=False, singular=True, adjectives=0.2)
        words = f"{preposition} {phrase.german[case]}"
        for separate, contracted in _CONTRACTIONS.items():
            if words.startswith(separate + " "):
                words = contracted + words[len(separate) :]
        return Place(words, f"{translation} {phrase.english[1]}", direction, phrase.combinations)

    def place(self) -> Place:
        """Where something happens: a preposition with the dative."""
        if self.chance(0.75):
            return self._placed("in", "in", "lr", phrases.DATIVE)
        preposition, translation = self.random.choice(_SURFACE_PREPOSITIONS[3:])
        return self._placed(preposition, translation, "b", phrases.DATIVE)

    def direction(self) -> Place:
        """Where something goes: in with the accusative, zu or aus with the dative."""
        preposition, translation, case = self.random.choice(
            (
                ("in", "into", phrases.ACCUSATIVE),
                ("zu", "to", phrases.DATIVE),
                ("aus", "out of", phrases.DATIVE),
            )
        )
        return self._placed(preposition, translation, "lr", case, direction=True)

    def surface(self, case: int) -> Place:
        """On or beside furniture: dative where something lies, accusative where it is put."""
        preposition, translation = self.random.choice(_SURFACE_PREPOSITIONS)
        return self._placed(preposition, translation, "s", case, direction=True)

    def time(self, tense: str, negated: bool) -> tuple[str, str]:
        """An adverbial of time that goes with a tense, or with a modal verb ("m")."""
        if self.chance(0.15):
            hour = self.random.randint(2, 12)
            return (
                f"um {phrases.german_number(hour)} Uhr",
                f"at {phrases.english_number(hour)} o'clock",
            )
        times = [t for t in TIMES if tense in t[2].split() and not (negated and "every" in t[1])]
        german, english, _ = self.random.choice(times)
        return german, english

    def clause(
        self,
        *,
        subject: Phrase | None = None,
        pronouns: tuple[Phrase, ...] = EVERYONE,
        verbs: list[Verb] | None = None,
        tenses: tuple[str, ...] = ("present", "present", "past", "m", "future"),
        adverbials: bool = True,
        negation: float = 0.2,
    ) -> Clause:
        """A clause with a verb of action and what it needs.

        Args:
            subject: the subject, if it is given (then a verb that goes with it is drawn).
            pronouns: which personal pronouns may be its subject.
            verbs: the verbs to draw from.
            tenses: the tenses to draw from; m is a present with a modal verb.
            adverbials: whether time, place and frequency may be added.
            negation: how likely it is negated.
        """
        if verbs is None:
            pools = (INTRANSITIVE, TRANSITIVE, _DATIVE, _GIVING, [VERBS[v] for v in MOTION])
            verbs = self.random.choices(pools, (25, 45, 10, 10, 10))[0]
        verb = self.random.choice(
            [v for v in verbs if subject is None or subject.kind in v.subjects] or INTRANSITIVE[:1]
        )
        negated = self.chance(negation) and (subject is None or subject.definite)
        tense = self.random.choice(tenses)
        if verb.infinitive in _STATES and tense not in ("present", "past"):
            tense = tenses[0]
        if subject is None:
            subject = self.subject(verb.subjects, pronouns, definite=negated)
        accusative = dative = None
        if verb.accusative:
            accusative = self.phrase(verb.accusative, counted=not negated, owner=subject, verb=verb)
        if verb.accusative and "p" in verb.accusative and not verb.dative and self.chance(0.15):
            others = [
                p for p in (*SPEAKERS, phrases.ER) if p.person != subject.person or p.person == 3
            ]
            accusative = self.random.choice(others)
        if verb.dative:
            dative = self.phrase(verb.dative, definite=True, counted=False, owner=subject)
            if self.chance(0.35):
                others = [p for p in EVERYONE if p.person != subject.person or p.person == 3]
                dative = self.random.choice(others)
        clause = Clause(
            subject,
            verb,
            tense="present" if tense == "m" else tense,
            modal=self.random.choice(clauses.MODALS) if tense == "m" else "",
            accusative=accusative,
            dative=dative,
            negated=negated,
            place=self.direction() if verb.infinitive in MOTION else None,
        )
        return self.adorned(clause, tense) if adverbials and verb.infinitive != "haben" else clause

    def adorned(self, clause: Clause, tense: str, place: bool = True) -> Clause:
        """The clause with adverbials of time or frequency, and of place if it takes one."""
        time = self.time(tense, clause.negated) if self.chance(0.3) else None
        frequency = None
        if not time and not clause.negated and tense in ("present", "past") and self.chance(0.15):
            frequency = self.random.choice(FREQUENCIES)
        where = clause.place
        indoors = clause.accusative is not None and clause.accusative.kind in "lr"
        if place and where is None and not indoors and self.chance(0.25):
            where = self.place()
        werden = not (clauses.is_future_time(time) and self.chance(0.5))
        return replace(clause, time=time, frequency=frequency, place=where, werden=werden)


def _possessive_of(owner: Phrase | None) -> str:
    """sein or ihr for an owner of whom it is clear which; empty for others."""
    if owner is None or owner.person != 3 or owner.kind != "p":
        return ""
    if owner.plural:
        return "ihr"
    return {"m": "sein", "f": "ihr"}.get(owner.gender, "")
