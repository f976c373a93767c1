"""Small archives with the layout of IWSLT 2014 and WMT 2017."""

from __future__ import annotations

import io
import tarfile

TEST_SETS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
PAIRS = [
    ("Guten Tag & willkommen!", "Good day & welcome!"),
    ("Das ist z.B. ein Hund.", "That is a dog, e.g."),
    ("Er sagt: «Nein», sagt er.", "He says: “No,” he says."),
    ("Wir haben 3 < 5 gelernt.", "We have learnt 3 < 5."),
    ("Die Straße ist so lang.", "The street’s that long."),
]


def sgm(lines: list[str], escaped: bool = True) -> str:
    """Return a dev or test set of two documents."""
    content = ['<refset setid="s" srclang="any" trglang="x">']
    for number, line in enumerate(lines):
        if number % 3 == 0:
            content.append(f'<doc docid="talk-{number}" genre="news"><title>T & T</title>\n<p>')
        text = line.replace("&", "&amp;").replace("<", "&lt;") if escaped else line
        content.append(f'<seg id="{number % 3 + 1}"> {text} </seg>')
    return "\n".join([*content, "</p>\n</doc>\n</refset>\n"])


def talk(lines: list[str], language: str) -> str:
    """Return a talk of a train.tags file, which begins with lines of tags."""
    content = [
        '<doc docid="1">',
        f"<url>http://www.ted.com/talks/{language}/1</url>",
        f"<keywords>talks, {language}</keywords>",
        "<speaker>Somebody</speaker>",
        "<talkid>1</talkid>",
        *['<translator href="u">N</translator>'] * (language == "de"),  # this side has more tags
        f"<title>{lines[0]}</title>",
        f"<description>TED Talk: {lines[-1]}</description>",
        *(f" {line} " for line in lines),
        "</doc>",
    ]
    return "".join(f"{line}\n" for line in content)


def pack(files: dict[str, str]) -> bytes:
    """Return a .tgz of these files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content.encode())
            archive.addfile(info, io.BytesIO(content.encode()))
    return stream.getvalue()


def small_iwslt(talks: int = 12) -> dict[str, str]:
    """Return the files of de-en.tgz with a few pairs per set."""
    files = {"de-en/README": "about"}
    for side, language in enumerate(("de", "en")):
        lines = [pair[side] for pair in PAIRS]
        files[f"de-en/train.tags.de-en.{language}"] = talk(lines, language) * talks
        for name in TEST_SETS:
            content = f'<?xml version="1.0" encoding="UTF-8"?>\n<mteval>\n{sgm(lines)}</mteval>\n'
            files[f"de-en/IWSLT14.{name}.de-en.{language}.xml"] = content
    return files


def small_wmt() -> dict[str, bytes]:
    """Return the archives of WMT 2017 by their names, with a few pairs each."""
    german, english = ([pair[side] for pair in PAIRS] for side in (0, 1))
    # lines that only "\n" ends, an empty line, and a last line without its end
    odd = (["eins\u2028zwei\x85drei vier", "", "fünf sechs"], ["one\u2028two\x85three", "", "five"])

    def texts(stem: str, times: int, de: list[str], en: list[str]) -> bytes:
        sides = {"de": german * times + de, "en": english * times + en}
        return pack({f"{stem}.{code}": "\n".join(lines) for code, lines in sides.items()})

    def sets(stem: str, count: int) -> dict[str, str]:
        source = sgm(english[:count], escaped=False)
        return {f"{stem}-src.en.sgm": source, f"{stem}-ref.de.sgm": sgm(german[:count])}

    dev = sets("dev/newstest2013", 3) | sets("dev/newstest2014-deen", 4)
    return {
        "training-parallel-europarl-v7.tgz": texts("training/europarl-v7.de-en", 40, *odd),
        "training-parallel-commoncrawl.tgz": texts("commoncrawl.de-en", 40, [], []),
        "training-parallel-nc-v12.tgz": texts("training/news-commentary-v12.de-en", 1, [], []),
        "dev.tgz": pack({"dev/README": "about", **dev}),
        "test.tgz": pack(sets("test/newstest2017-ende", 5)),
    }
