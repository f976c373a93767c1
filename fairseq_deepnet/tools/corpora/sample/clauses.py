"""Clauses of the sample corpus: one structure of meaning, put into German and English words.

A `Clause` is a verb with its phrases and adverbials; `german` and `english` render it. Nothing here
is random.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairseq_deepnet.tools.corpora.sample.lexicon import (
    FUTURE_TIMES,
    IRREGULAR_PRESENT,
    PRETERITE,
    Verb,
    third_person,
)
from fairseq_deepnet.tools.corpora.sample.phrases import ACCUSATIVE, DATIVE, NOMINATIVE, Phrase


@dataclass(frozen=True)
class Place:
    """A place or direction in both languages, for instance im Garten, in the garden."""

    german: str
    english: str
    direction: bool = False
    combinations: tuple[str, ...] = ()


# German infinitive -> English auxiliary and what it becomes when negated; want to and have to are
# ordinary verbs.
_MODALS = {
    "können": ("can", "cannot"),
    "müssen": ("must", ""),
    "sollen": ("should", "should not"),
    "dürfen": ("may", "must not"),
    "wollen": ("", ""),
    "möchten": ("would", "would not"),
}
MODALS = tuple(_MODALS)


@dataclass(frozen=True)
class Clause:
    """A verb with its phrases and adverbials.

    Args:
        tense: present, past or future. A future with a time such as morgen may be a German present.
        modal: the infinitive of a German modal verb, with the present only.
        predicate: German and English words after sein.
        time, frequency: German and English adverbial.
        werden: whether German renders a future with werden.
    """

    subject: Phrase
    verb: Verb
    tense: str = "present"
    modal: str = ""
    accusative: Phrase | None = None
    dative: Phrase | None = None
    predicate: tuple[str, str] | None = None
    negated: bool = False
    time: tuple[str, str] | None = None
    frequency: tuple[str, str] | None = None
    place: Place | None = None
    werden: bool = True
    predicate_combination: str = ""

    @property
    def combinations(self) -> tuple[str, ...]:
        """What the phrases of this clause put together."""
        phrases = (self.subject, self.accusative, self.dative, self.place)
        own = (self.predicate_combination,) if self.predicate_combination else ()
        return tuple(c for phrase in phrases if phrase for c in phrase.combinations) + own


def conjugate(infinitive: str, phrase: Phrase, third: str = "") -> str:
    """The German present of a verb without its prefix; `third` is the irregular er-form."""
    index = phrase.person - 1 + (3 if phrase.plural else 0)
    if infinitive in IRREGULAR_PRESENT:
        return IRREGULAR_PRESENT[infinitive][index]
    stem = infinitive[:-2] if infinitive.endswith("en") else infinitive[:-1]
    if third and index in (1, 2):
        stem = third[:-1]
        du = third if stem.endswith("s") else stem + "st"
        return du if index == 1 else third
    linking = "e" if stem.endswith(("t", "d", "gn")) else ""
    du_ending = "t" if stem.endswith(("s", "z", "ß")) else linking + "st"
    endings = ("e", du_ending, linking + "t", None, linking + "t", None)
    ending = endings[index]
    return infinitive if ending is None else stem + ending


def _german_verb(clause: Clause) -> tuple[str, list[str], str]:
    """Finite verb, what stands at the end of a main clause, and the prefix of the finite verb."""
    verb, subject = clause.verb, clause.subject
    if clause.modal:
        return conjugate(clause.modal, subject), [verb.infinitive], ""
    if clause.tense == "future" and clause.werden:
        return conjugate("werden", subject), [verb.infinitive], ""
    if clause.tense == "past":
        if verb.infinitive in PRETERITE:
            index = subject.person - 1 + (3 if subject.plural else 0)
            return PRETERITE[verb.infinitive][index], [], ""
        return conjugate(verb.auxiliary, subject), [verb.participle], ""
    return conjugate(verb.stem_infinitive, subject, verb.third), [], verb.prefix


def german(clause: Clause, order: str = "main", front: str = "subject") -> list[str]:
    """A clause in German words.

    Args:
        order: main (verb second), inverted (verb first: questions, and after a fronted clause)
            or final (verb last: subordinate clauses).
        front: in a main clause, what stands first: subject, time, place, accusative or dative;
            or a question word, for the phrase that the clause leaves out.
    """
    finite, tail, prefix = _german_verb(clause)
    negated = clause.negated
    accusative = clause.accusative
    kein = bool(negated and accusative and accusative.german_negated)
    parts: dict[str, str] = {"subject": clause.subject.german[NOMINATIVE]}
    if clause.time:
        parts["time"] = clause.time[0]
    if clause.place:
        parts["place"] = clause.place.german
    if accusative:
        forms = accusative.german_negated if kein else accusative.german
        parts["accusative"] = forms[ACCUSATIVE]
    if clause.dative:
        parts["dative"] = clause.dative.german[DATIVE]
    first = []
    if order == "main":
        first = [parts.pop(front) if front in parts else front]
    # The middle field: subject, pronouns, time, dative, what is known, nicht, place, what is new,
    # direction.
    middle = ["subject"]
    late = accusative is not None and not accusative.definite
    if accusative and accusative.pronoun:
        middle.append("accusative")
    if clause.dative and clause.dative.pronoun:
        middle.append("dative")
    middle += ["time", "dative"] + ([] if late else ["accusative"])
    words = [parts.pop(name) for name in middle if name in parts]
    if negated and not kein:
        words.append("nicht")
    if clause.frequency:
        words.append(clause.frequency[0])
    rest = (
        ["accusative", "place"]
        if clause.place and clause.place.direction
        else ["place", "accusative"]
    )
    words += [parts.pop(name) for name in rest if name in parts]
    if clause.predicate:
        words.append(clause.predicate[0])
    if order == "final":
        return words + tail + [prefix + finite]
    return [*first, finite, *words, *tail, *([prefix] if prefix else [])]


def _english_verb(clause: Clause, subject: Phrase, question: bool) -> tuple[str, list[str]]:
    """The auxiliary (perhaps empty), and the rest of the verb, with not and the frequency."""
    singular = subject.person == 3 and not subject.plural
    main = [clause.verb.english]
    tense, negated, auxiliary = clause.tense, clause.negated, ""
    if clause.modal:
        auxiliary, refused = _MODALS[clause.modal]
        if clause.modal == "möchten":
            main = ["like", "to", *main]
        elif clause.modal == "wollen":
            main = ["want", "to", *main]
        elif clause.modal == "müssen" and negated:
            auxiliary, main = "", ["have", "to", *main]
        if auxiliary and negated:
            auxiliary, _, word = refused.partition(" ")
            main, negated = ([word] if word else []) + main, False
    elif tense == "future":
        auxiliary = "will"
    elif clause.verb.english == "be":
        if tense == "past":
            auxiliary = (
                "was" if singular or (subject.person == 1 and not subject.plural) else "were"
            )
        else:
            auxiliary = "is" if singular else "are"
            if subject.person == 1 and not subject.plural:
                auxiliary = "am"
        main = []
    if not auxiliary:
        if negated or question:
            auxiliary = "did" if tense == "past" else "does" if singular else "do"
        elif tense == "past":
            main[0] = clause.verb.english_past
        elif singular:
            main[0] = third_person(main[0])
    frequency = [clause.frequency[1]] if clause.frequency else []
    return auxiliary, (["not"] if negated else []) + frequency + main


def english(clause: Clause, *, question: bool = False, front: str = "") -> list[str]:
    """A clause in English words.

    Args:
        question: whether the auxiliary stands before the subject.
        front: "time" puts the time first; English leaves the other parts in their place.
    """
    subject, accusative, dative = clause.subject, clause.accusative, clause.dative
    if (
        clause.verb.infinitive == "gefallen" and dative
    ):  # the book pleases the man: the man likes the book
        subject, accusative, dative = dative, subject, None
    auxiliary, verb = _english_verb(clause, subject, question)
    objects = [dative.english[1]] if dative else []
    if accusative:
        kein = clause.negated and accusative.english_negated
        objects.append(accusative.english_negated if kein else accusative.english[1])
    particle = clause.verb.english_particle
    if particle:
        objects.insert(len(objects) if accusative and accusative.pronoun else 0, particle)
    if clause.verb.english_fixed:
        objects.insert(0, clause.verb.english_fixed)
    before = [subject.english[0], auxiliary]
    words = [clause.time[1]] if clause.time and front == "time" else []
    words += [w for w in (reversed(before) if question else before) if w] + verb + objects
    if clause.predicate:
        words.append(clause.predicate[1])
    if clause.place:
        words.append(clause.place.english)
    if clause.time and front != "time":
        words.append(clause.time[1])
    return words


def is_future_time(time: tuple[str, str] | None) -> bool:
    """Whether a German present with this time speaks of the future."""
    return time is not None and time[0] in FUTURE_TIMES


def sentence(words: list[str], end: str = ".") -> str:
    """Words and commas as a sentence: spaced, capitalised, with its final mark."""
    text = " ".join(words).replace(" ,", ",").rstrip(", ")
    return text[0].upper() + text[1:] + end
