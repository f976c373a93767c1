"""Words of the sample corpus: German nouns, verbs and adjectives with their English translation.

Every German lemma has one translation, so that every sentence has one. Kinds say what goes with
what: a verb lists the kinds of subject and object that it takes, an adjective the kinds of noun.
They are single letters: p person, a animal, t thing, g large thing, s thing with a surface, o thing
that opens, w something to read, x something to write, c clothing, f food that is counted, m food
that is not, d drink, r room or building, b building, l outdoor place.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Noun:
    """A noun. `plural` is empty if it is not counted; a weak noun has it in the singular too."""

    singular: str
    plural: str
    gender: str  # m, f, n
    weak: bool
    english: str
    english_plural: str
    kinds: str  # the first letter is what it is above all


@dataclass(frozen=True)
class Verb:
    """A verb: German stem forms, English translation, kinds of its subject and objects."""

    infinitive: str  # with its separable prefix
    prefix: str
    stem_infinitive: str  # without it
    third: str  # er/sie/es form without prefix where it is irregular, else empty
    participle: str
    auxiliary: str  # haben or sein
    english: str
    english_past: str
    english_fixed: str  # follows the verb at once: "look for him"
    english_particle: str  # follows a pronoun: "pick up the book", "pick it up"
    subjects: str
    accusative: str
    dative: str


@dataclass(frozen=True)
class Adjective:
    """An adjective: predicative form, stem for endings, translation, kinds of noun."""

    word: str
    stem: str
    english: str
    kinds: str


# singular, gender (* weak), plural, English, English plural (- regular), kinds
_NOUNS = """
Mann m Männer man men p
Frau f Frauen woman women p
Kind n Kinder child children p
Junge m* Jungen boy - p
Mädchen n Mädchen girl - p
Lehrer m Lehrer teacher - p
Lehrerin f Lehrerinnen teacher - p
Arzt m Ärzte doctor - p
Ärztin f Ärztinnen doctor - p
Nachbar m* Nachbarn neighbour - p
Student m* Studenten student - p
Bauer m* Bauern farmer - p
Onkel m Onkel uncle - p
Schwester f Schwestern sister - p
Bruder m Brüder brother - p
König m Könige king - p
Königin f Königinnen queen - p
Tochter f Töchter daughter - p
Hund m Hunde dog - a
Katze f Katzen cat - a
Pferd n Pferde horse - a
Kuh f Kühe cow - a
Vogel m Vögel bird - a
Maus f Mäuse mouse mice a
Schaf n Schafe sheep sheep a
Löwe m* Löwen lion - a
Esel m Esel donkey - a
Elefant m* Elefanten elephant - a
Tisch m Tische table - ts
Stuhl m Stühle chair - ts
Bett n Betten bed - gs
Schrank m Schränke cupboard - gso
Kiste f Kisten box - tso
Lampe f Lampen lamp - t
Schlüssel m Schlüssel key - t
Messer n Messer knife knives t
Uhr f Uhren clock - t
Regenschirm m Regenschirme umbrella - t
Koffer m Koffer suitcase - to
Flasche f Flaschen bottle - to
Spiegel m Spiegel mirror - t
Tasche f Taschen bag - to
Blume f Blumen flower - t
Ball m Bälle ball - t
Auto n Autos car - g
Fahrrad n Fahrräder bicycle - g
Buch n Bücher book - wx
Brief m Briefe letter - wx
Zeitung f Zeitungen newspaper - w
Hut m Hüte hat - c
Mantel m Mäntel coat - c
Jacke f Jacken jacket - c
Hemd n Hemden shirt - c
Kleid n Kleider dress - c
Schuh m Schuhe shoe - c
Apfel m Äpfel apple - f
Ei n Eier egg - f
Orange f Orangen orange - f
Kuchen m Kuchen cake - f
Tomate f Tomaten tomato - f
Kirsche f Kirschen cherry - f
Brot n - bread - m
Käse m - cheese - m
Suppe f - soup - m
Wasser n - water - d
Milch f - milk - d
Kaffee m - coffee - d
Tee m - tea - d
Garten m Gärten garden - l
Wald m Wälder forest - l
Stadt f Städte town - l
Park m Parks park - l
Küche f Küchen kitchen - r
Schule f Schulen school - rb
Haus n Häuser house - rb
Zimmer n Zimmer room - r
Büro n Büros office - rb
Hotel n Hotels hotel - rb
Keller m Keller cellar - r
"""

# prefix|infinitive, er-form (- regular), participle (+ with sein), English (_ fixed, + particle),
# past (- regular), kinds of subject, accusative, dative (- none)
_VERBS = """
schlafen schläft geschlafen sleep slept pa - -
arbeiten - gearbeitet work - p - -
lachen - gelacht laugh - p - -
warten - gewartet wait - pa - -
spielen - gespielt play - pa - -
schwimmen - +geschwommen swim swam pa - -
gehen - +gegangen go went p - -
laufen läuft +gelaufen run ran pa - -
fahren fährt +gefahren drive drove p - -
kommen - +gekommen come came pa - -
auf|stehen - +aufgestanden get_up got p - -
ein|schlafen schläft +eingeschlafen fall_asleep fell pa - -
auf|wachen - +aufgewacht wake_up woke pa - -
an|kommen - +angekommen arrive - p - -
ein|kaufen - eingekauft go_shopping went p - -
liegen - gelegen lie lay twcf - -
stehen - gestanden stand stood t - -
essen isst gegessen eat ate p fm -
trinken - getrunken drink drank pa d -
kaufen - gekauft buy bought p twcfmdga -
verkaufen - verkauft sell sold p twcfga -
suchen - gesucht look_for - p twcpa -
finden - gefunden find found p twcpa -
sehen sieht gesehen see saw pa twcparlg -
lesen liest gelesen read read p w -
schreiben - geschrieben write wrote p x -
tragen trägt getragen carry - p tf -
waschen wäscht gewaschen wash - p cg -
nehmen nimmt genommen take took p twcf -
brauchen - gebraucht need - p twcmdg -
lieben - geliebt love - p pa -
verlieren - verloren lose lost p twc -
putzen - geputzt clean - p r -
besuchen - besucht visit - p prl -
fragen - gefragt ask - p p -
hören - gehört hear heard pa pa -
füttern - gefüttert feed fed p a -
jagen - gejagt chase - a a -
bezahlen - bezahlt pay_for paid p twcf -
ab|holen - abgeholt pick+up - p ptw -
an|rufen - angerufen phone - p p -
ein|laden lädt eingeladen invite - p p -
auf|räumen - aufgeräumt tidy+up - p r -
weg|werfen wirft weggeworfen throw+away threw p twcf -
an|ziehen - angezogen put+on put p c -
auf|machen - aufgemacht open - p o -
an|schauen - angeschaut look_at - p twparl -
legen - gelegt put put p twcf -
helfen hilft geholfen help - p - pa
danken - gedankt thank - p - p
folgen - +gefolgt follow - pa - pa
gehören - gehört belong_to - twcga - p
gefallen gefällt gefallen like - twcrlg - p
geben gibt gegeben give gave p twcf p
zeigen - gezeigt show - p twarl p
bringen - gebracht bring brought p twcfmd p
wissen weiß gewusst know knew p - -
sagen - gesagt say said p - -
glauben - geglaubt believe - p - -
regnen - geregnet rain - - - -
schneien - geschneit snow - - - -
haben - gehabt have had p twcga -
sein - +gewesen be was pa - -
"""

# word, English, kinds; a stem that differs follows the word after a stroke
_ADJECTIVES = """
alt old patgwcrl
neu new tgwcr
klein small patgcfrl
groß big patgcfrl
rot red tgcf
blau blue tgc
grün green tgcf
schwarz black atgc
weiß white atgc
schön beautiful patgwcrl
teuer/teur expensive tgwc
schwer heavy tg
nützlich useful tgw
interessant interesting wpl
jung young pa
müde/müd tired pa
hungrig hungry pa
glücklich happy p
krank sick pa
klug clever pa
ehrlich honest p
wütend angry p
schmutzig dirty tgcr
leer empty or
kalt cold dmr
warm warm dmcr
frisch fresh fmd
süß sweet fd
"""

# First parts of compounds (with their linking element), their translation, and the second parts.
COMPOUNDS: tuple[tuple[dict[str, str], str], ...] = (
    (
        {
            "Küchen": "kitchen",
            "Garten": "garden",
            "Schul": "school",
            "Hotel": "hotel",
            "Büro": "office",
            "Keller": "cellar",
        },
        "Tisch Stuhl Schrank Lampe Schlüssel Uhr Spiegel Bett",
    ),
    (
        {
            "Winter": "winter",
            "Sommer": "summer",
            "Leder": "leather",
            "Arbeits": "work",
            "Kinder": "children's",
        },
        "Hut Mantel Jacke Hemd Kleid Schuh Tasche",
    ),
)

# singular and plural subject forms of the present: ich, du, er, wir, ihr, sie
IRREGULAR_PRESENT: dict[str, tuple[str, ...]] = {
    "sein": ("bin", "bist", "ist", "sind", "seid", "sind"),
    "haben": ("habe", "hast", "hat", "haben", "habt", "haben"),
    "werden": ("werde", "wirst", "wird", "werden", "werdet", "werden"),
    "wissen": ("weiß", "weißt", "weiß", "wissen", "wisst", "wissen"),
    "können": ("kann", "kannst", "kann", "können", "könnt", "können"),
    "müssen": ("muss", "musst", "muss", "müssen", "müsst", "müssen"),
    "wollen": ("will", "willst", "will", "wollen", "wollt", "wollen"),
    "sollen": ("soll", "sollst", "soll", "sollen", "sollt", "sollen"),
    "dürfen": ("darf", "darfst", "darf", "dürfen", "dürft", "dürfen"),
    "möchten": ("möchte", "möchtest", "möchte", "möchten", "möchtet", "möchten"),
}
# these two form their past with the preterite, all others with the perfect
PRETERITE: dict[str, tuple[str, ...]] = {
    "sein": ("war", "warst", "war", "waren", "wart", "waren"),
    "haben": ("hatte", "hattest", "hatte", "hatten", "hattet", "hatten"),
}

# German adverbial, English, the tenses it goes with (m = with a modal verb in the present)
TIMES: tuple[tuple[str, str, str], ...] = (
    ("heute", "today", "present past future m"),
    ("jetzt", "now", "present m"),
    ("gestern", "yesterday", "past"),
    ("letzte Woche", "last week", "past"),
    ("morgen", "tomorrow", "future m"),
    ("nächste Woche", "next week", "future m"),
    ("jeden Tag", "every day", "present m"),
    ("am Morgen", "in the morning", "present past future m"),
    ("am Abend", "in the evening", "present past future m"),
    ("im Winter", "in winter", "present past future m"),
    ("im Sommer", "in summer", "present past future m"),
    ("am Montag", "on Monday", "present past future m"),
    ("am Mittwoch", "on Wednesday", "present past future m"),
    ("am Samstag", "on Saturday", "present past future m"),
    ("am Sonntag", "on Sunday", "present past future m"),
)
FUTURE_TIMES = (
    "morgen",
    "nächste Woche",
)  # a German present with one of these is an English future
FREQUENCIES: tuple[tuple[str, str], ...] = (("oft", "often"), ("immer", "always"), ("nie", "never"))


def _regular_plural(word: str) -> str:
    if word.endswith(("s", "x", "ch", "sh", "o")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def third_person(word: str) -> str:
    """English third person singular of the present: eats, goes, carries, has."""
    return {"have": "has", "be": "is"}.get(word) or _regular_plural(word)


def _regular_past(word: str) -> str:
    if word.endswith("e"):
        return word + "d"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ied"
    return word + "ed"


def _read_noun(line: str) -> Noun:
    singular, gender, plural, english, english_plural, kinds = line.split()
    if english_plural == "-":
        english_plural = _regular_plural(english)
    return Noun(
        singular, plural.strip("-"), gender[0], gender.endswith("*"), english, english_plural, kinds
    )


def _read_verb(line: str) -> Verb:
    infinitive, third, participle, translation, past, subjects, accusative, dative = line.split()
    prefix, _, stem = infinitive.rpartition("|")
    translation, _, particle = translation.partition("+")
    english, _, fixed = translation.partition("_")
    return Verb(
        infinitive=prefix + stem,
        prefix=prefix,
        stem_infinitive=stem,
        third=third.strip("-"),
        participle=participle.lstrip("+"),
        auxiliary="sein" if participle.startswith("+") else "haben",
        english=english,
        english_past=_regular_past(english) if past == "-" else past,
        english_fixed=fixed,
        english_particle=particle,
        subjects=subjects.strip("-"),
        accusative=accusative.strip("-"),
        dative=dative.strip("-"),
    )


def _read_adjective(line: str) -> Adjective:
    word, english, kinds = line.split()
    word, _, stem = word.partition("/")
    return Adjective(word, stem or word, english, kinds)


NOUNS: dict[str, Noun] = {n.singular: n for n in map(_read_noun, _NOUNS.split("\n")[1:-1])}
VERBS: dict[str, Verb] = {v.infinitive: v for v in map(_read_verb, _VERBS.split("\n")[1:-1])}
ADJECTIVES: dict[str, Adjective] = {
    a.word: a for a in map(_read_adjective, _ADJECTIVES.split("\n")[1:-1])
}
