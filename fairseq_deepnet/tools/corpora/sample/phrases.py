"""Noun phrases of the sample corpus: articles, adjectives, numbers and pronouns.

Nothing here is random.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fairseq_deepnet.tools.corpora.sample.lexicon import Adjective, Noun

# Endings by gender (m, f, n, and p for the plural), in the order nominative, accusative, dative.
NOMINATIVE, ACCUSATIVE, DATIVE = range(3)
_DER = {
    "m": ("der", "den", "dem"),
    "f": ("die", "die", "der"),
    "n": ("das", "das", "dem"),
    "p": ("die", "die", "den"),
}
_EIN = {"m": ("", "en", "em"), "f": ("e", "e", "er"), "n": ("", "", "em"), "p": ("e", "e", "en")}
_STRONG = {
    "m": ("er", "en", "em"),
    "f": ("e", "e", "er"),
    "n": ("es", "es", "em"),
    "p": ("e", "e", "en"),
}
_WEAK = {"m": ("e", "en", "en"), "f": ("e", "e", "en"), "n": ("e", "e", "en"), "p": ("en",) * 3}
_MIXED = {
    "m": ("er", "en", "en"),
    "f": ("e", "e", "en"),
    "n": ("es", "es", "en"),
    "p": ("en",) * 3,
}
# Determiners that decline like ein, and like dieser, with their translation.
POSSESSIVES = {"mein": "my", "dein": "your", "unser": "our", "sein": "his", "ihr": "her"}
_UNITS = [
    "null",
    "ein",
    "zwei",
    "drei",
    "vier",
    "fünf",
    "sechs",
    "sieben",
    "acht",
    "neun",
    "zehn",
    "elf",
    "zwölf",
]
_TEENS = {16: "sechzehn", 17: "siebzehn"}
_TENS = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
_ENGLISH_NUMBERS = [
    *["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"],
    *["eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"],
    "nineteen",
]
_ENGLISH_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def german_number(number: int) -> str:
    """A number from 2 to 99 in German words: 21 is einundzwanzig."""
    if number <= 12:
        return _UNITS[number]
    if number < 20:
        return _TEENS.get(number) or _UNITS[number - 10] + "zehn"
    tens, units = divmod(number, 10)
    return (_UNITS[units] + "und" if units else "") + _TENS[tens - 2]


def english_number(number: int) -> str:
    """A number from 2 to 99 in English words: 21 is twenty-one."""
    if number < 20:
        return _ENGLISH_NUMBERS[number]
    tens, units = divmod(number, 10)
    return _ENGLISH_TENS[tens - 2] + ("-" + _ENGLISH_NUMBERS[units] if units else "")


@dataclass(frozen=True)
class Phrase:
    """A noun phrase or pronoun with its forms in both languages.

    Args:
        german: nominative, accusative and dative.
        english: subject and object form.
        gender: m, f or n of its noun.
        kind: above all what its noun is (see lexicon).
        german_negated, english_negated: forms with kein of an indefinite phrase, else empty.
        combinations: what this phrase puts together, as "kind:a:b".
    """

    german: tuple[str, str, str]
    english: tuple[str, str]
    person: int = 3
    plural: bool = False
    gender: str = "m"
    kind: str = "p"
    definite: bool = True
    pronoun: bool = False
    german_negated: tuple[str, ...] = ()
    english_negated: str = ""
    combinations: tuple[str, ...] = ()


def _pronoun(german: str, english: str, person: int, plural: bool, gender: str = "m") -> Phrase:
    nominative, accusative, dative = german.split()
    subject, object_ = english.split()
    return Phrase(
        (nominative, accusative, dative), (subject, object_), person, plural, gender, pronoun=True
    )


ICH = _pronoun("ich mich mir", "I me", 1, False)
DU = _pronoun("du dich dir", "you you", 2, False)
ER = _pronoun("er ihn ihm", "he him", 3, False)
SIE = _pronoun("sie sie ihr", "she her", 3, False, "f")
ES = _pronoun("es es ihm", "it it", 3, False, "n")
WIR = _pronoun("wir uns uns", "we us", 1, True)
IHR = _pronoun("ihr euch euch", "you you", 2, True)
SIE_PLURAL = _pronoun("sie sie ihnen", "they them", 3, True)
WER = _pronoun("wer wen wem", "who whom", 3, False)


def pronoun_for(phrase: Phrase) -> Phrase:
    """The pronoun that stands for a phrase: German follows its gender, English what it is."""
    if phrase.plural:
        return replace(SIE_PLURAL, kind=phrase.kind)
    pronoun = {"m": ER, "f": SIE, "n": ES}[phrase.gender]
    if phrase.kind != "p":
        pronoun = replace(pronoun, english=("it", "it"))
    return replace(pronoun, kind=phrase.kind)


def compound(modifier: str, translation: str, head: Noun) -> Noun:
    """A compound noun: Küchen + Tisch is Küchentisch, kitchen table."""
    return replace(
        head,
        singular=modifier + head.singular.lower(),
        plural=modifier + head.plural.lower(),
        english=f"{translation} {head.english}",
        english_plural=f"{translation} {head.english_plural}",
    )


def _noun_form(noun: Noun, case: int, plural: bool) -> str:
    if not plural:
        return noun.plural if noun.weak and case != NOMINATIVE else noun.singular
    needs_n = case == DATIVE and not noun.plural.endswith(("n", "s"))
    return noun.plural + ("n" if needs_n else "")


def with_article(words: str) -> str:
    """The words behind a or an, by their sound: an apple, an honest man, a useful book."""
    vowel = words.startswith(("a", "e", "i", "o", "u", "honest")) and not words.startswith("useful")
    return ("an " if vowel else "a ") + words


def noun_phrase(
    noun: Noun,
    determiner: str,
    *,
    plural: bool = False,
    adjective: Adjective | None = None,
    number: int = 0,
    their: bool = False,
) -> Phrase:
    """A noun with determiner and perhaps an adjective, in every case and both languages.

    Args:
        determiner: der, ein, dieser, jeder, viele, number, bare, or a possessive (sein means his,
            ihr means her, or their if `their` is set).
        number: 2 to 99, with the determiner "number".
    """
    key = "p" if plural else noun.gender
    translation = noun.english_plural if plural else noun.english
    if adjective:
        translation = f"{adjective.english} {translation}"
    count = bool(noun.plural) and not plural

    def german(determiner: str) -> tuple[str, str, str]:
        forms = []
        for case in (NOMINATIVE, ACCUSATIVE, DATIVE):
            if determiner == "der":
                article, endings = _DER[key][case], _WEAK
            elif determiner in ("dieser", "jeder"):
                article, endings = determiner[:-2] + _STRONG[key][case], _WEAK
            elif determiner in ("ein", "kein") or determiner in POSSESSIVES:
                article, endings = determiner + _EIN[key][case], _MIXED
            else:
                article = {"viele": "viele" + ("n" if case == DATIVE else ""), "bare": ""}.get(
                    determiner, german_number(number) if number else ""
                )
                endings = _STRONG
            inflected = adjective.stem + endings[key][case] if adjective else ""
            forms.append(
                " ".join(filter(None, (article, inflected, _noun_form(noun, case, plural))))
            )
        return (forms[0], forms[1], forms[2])

    if determiner == "ein":
        words = with_article(translation)
    elif determiner == "number":
        words = f"{english_number(number)} {translation}"
    else:
        article = {"der": "the", "jeder": "every", "viele": "many", "bare": ""}.get(determiner)
        if determiner == "dieser":
            article = "these" if plural else "this"
        elif determiner == "ihr" and their:
            article = "their"
        elif article is None:
            article = POSSESSIVES[determiner]
        words = f"{article} {translation}".strip()
    combinations = []
    if adjective:
        combinations.append(f"adjective:{adjective.word}:{noun.singular}")
    if number:
        combinations.append(f"number:{number}:{noun.singular}")
    negatable = determiner in ("ein", "bare")
    return Phrase(
        german=german(determiner),
        english=(words, words),
        plural=plural,
        gender=noun.gender,
        kind=noun.kinds[0],
        definite=determiner not in ("ein", "bare", "number", "viele"),
        german_negated=german("kein") if negatable else (),
        english_negated=(with_article(translation) if count else f"any {translation}")
        if negatable
        else "",
        combinations=tuple(combinations),
    )


def both(first: Phrase, second: Phrase) -> Phrase:
    """Two phrases joined by und."""
    german = [f"{a} und {b}" for a, b in zip(first.german, second.german, strict=True)]
    english = [f"{a} and {b}" for a, b in zip(first.english, second.english, strict=True)]
    return Phrase(
        german=(german[0], german[1], german[2]),
        english=(english[0], english[1]),
        plural=True,
        kind=first.kind,
        combinations=first.combinations + second.combinations,
    )


def with_relative(
    head: Phrase, german: list[str], english: list[str], combinations: tuple[str, ...]
) -> Phrase:
    """A phrase with a relative clause after it: its words, without commas, and all combinations."""
    nominative, accusative, dative = (f"{form} , {' '.join(german)} ," for form in head.german)
    subject, object_ = (f"{form} {' '.join(english)}" for form in head.english)
    return replace(
        head,
        german=(nominative, accusative, dative),
        english=(subject, object_),
        combinations=combinations,
    )
