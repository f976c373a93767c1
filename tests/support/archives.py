"""Archives of the true layout of IWSLT 2014 and WMT 2017, made of real talks or of a few lines."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEST_SETS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")

PAIRS = [
    ("Guten Tag & willkommen!", "Good day & welcome!"),
    ("Das ist z.B. ein Hund.", "That is a dog, e.g."),
    ("Er sagt: «Nein», sagt er.", "He says: “No,” he says."),
    ("Wir haben 3 < 5 gelernt.", "We have learnt 3 < 5."),
    ("Die Straße ist so lang.", "The street’s that long."),
]


def sgm(
    kind: str, language: str, lines: list[str], documents: int = 2, escaped: bool = True
) -> str:
    """A dev or test set; `kind` is srcset or refset."""
    content = [f'<{kind} setid="s" srclang="any" trglang="{language}">']
    each = -(-len(lines) // documents)
    for start in range(0, len(lines), each):
        content.append(f'<doc docid="talk-{start}" genre="news"><title>T & T</title>\n<p>')
        for number, line in enumerate(lines[start : start + each], start=1):
            text = line.replace("&", "&amp;").replace("<", "&lt;") if escaped else line
            content.append(f'<seg id="{number}"> {text} </seg>')
        content.append("</p>\n</doc>")
    return "\n".join([*content, f"</{kind}>", ""])


def train_tags(talks: list[list[str]], language: str) -> str:
    """A train.tags file: every talk is lines of tags, then its sentences."""
    content = []
    for number, talk in enumerate(talks):
        content += [
            f'<doc docid="{number}">',
            f"<url>http://www.ted.com/talks/{language}/{number}</url>",
            f"<keywords>talks, {language}</keywords>",
            "<speaker>Somebody</speaker>",
            f"<talkid>{number}</talkid>",
            *(f'<translator href="u">N{i}</translator>' for i in range(len(language + "s"))),
            f"<title>{talk[0]}</title>",
            f"<description>TED Talk: {talk[-1]}</description>",
            *(f" {line} " for line in talk),
            "</doc>",
        ]
        if language == "de":  # the sides need not have as many tags
            content.append("<reviewer>R</reviewer>")
    return "".join(f"{line}\n" for line in content)


def pack(files: dict[str, str | bytes]) -> bytes:
    """A .tgz of these files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def small_iwslt(talks: int = 12) -> dict[str, str | bytes]:
    """The files of de-en.tgz with a few pairs a set."""
    files: dict[str, str | bytes] = {"de-en/README": "about"}
    for side, language in enumerate(("de", "en")):
        lines = [pair[side] for pair in PAIRS]
        files[f"de-en/train.tags.de-en.{language}"] = train_tags([lines] * talks, language)
        for name in TEST_SETS:
            kind = "refset" if side else "srcset"
            content = (
                f'<?xml version="1.0" encoding="UTF-8"?>\n<mteval>\n{sgm(kind, language, lines)}'
            )
            files[f"de-en/IWSLT14.{name}.de-en.{language}.xml"] = content + "</mteval>\n"
    return files


def small_wmt(repeats: int = 40) -> dict[str, bytes]:
    """The archives of WMT 2017 by their names, with a few pairs each, and other languages too."""
    german, english = ([f"{pair[side]}\n" for pair in PAIRS] for side in (0, 1))
    # lines that only "\n" ends, an empty one, and a last one without its end
    odd = "eins\u2028zwei\x85drei vier\n\nfünf sechs"
    odd_english = "one\u2028two\x85three four\n\nfive six"
    europarl = {
        "training/europarl-v7.cs-en.cs": "x\n",
        "training/europarl-v7.de-en.de": "".join(german) * repeats + odd,
        "training/europarl-v7.de-en.en": "".join(english) * repeats + odd_english,
        "training/europarl-v7.es-en.es": "x\n",
    }
    crawl = {
        "commoncrawl.de-en.de": "".join(german[::-1]) * repeats,
        "commoncrawl.de-en.en": "".join(english[::-1]) * repeats,
    }
    news = {
        "training/news-commentary-v12.de-en.de": "".join(german),
        "training/news-commentary-v12.de-en.en": "".join(english),
    }
    sides = [line.strip() for line in english], [line.strip() for line in german]
    dev, test = {}, {}
    for stem, files, count in (
        ("dev/newstest2013", dev, 3),
        ("dev/newstest2014-deen", dev, 4),
        ("test/newstest2017-ende", test, 5),
    ):
        files[f"{stem}-src.en.sgm"] = sgm("srcset", "en", sides[0][:count], 1, escaped=False)
        files[f"{stem}-ref.de.sgm"] = sgm("refset", "de", sides[1][:count], 1)
    return {
        "training-parallel-europarl-v7.tgz": pack(europarl),
        "training-parallel-commoncrawl.tgz": pack(crawl),
        "training-parallel-nc-v12.tgz": pack(news),
        "dev.tgz": pack(dev),
        "test.tgz": pack(test),
    }
