"""The parsers accept every command that README and docs print."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.cli import words_of
from tests.support.shell import ROOT

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "data/README.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
STARTS = re.compile(r"(?:[A-Z_]+=\S+ +)*(?:deepnet |bash scripts/|python benchmarks/)")
HAND_OVER = re.compile(r"^hand_over (\w+)", re.MULTILINE)


def printed() -> Iterator[tuple[str, str]]:
    """Yield page and command of each line of code, without prompts, pipes, loops and comments."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        blocks = re.findall(r"^ {4,}(.*)$", text, re.MULTILINE) + re.findall(r"`([^`\n]+)`", text)
        for line in blocks:
            plain = re.sub(r"(^|\s)#.*", "", line.removeprefix("$ "))
            for part in re.split(r"&&|\||;|\bdo\b", plain):
                command = part.split(" > ")[0].split(" < ")[0].strip()
                if STARTS.match(command) and not re.search(r"\.\.\.|\$|\[|\*", command):
                    yield str(page.relative_to(ROOT)), command


@pytest.mark.parametrize(("page", "command"), sorted(set(printed())))
def test_a_printed_command_is_one_that_there_is(page: str, command: str) -> None:
    words = shlex.split(re.sub(r"\bN\b", "2", command.replace("CORPUS", "wmt17")))
    start = next(n for n, word in enumerate(words) if "=" not in word)
    variables = dict(word.split("=", 1) for word in words[:start])
    program, *rest = words[start:]
    if program == "python":
        # benchmarks that are gone are named with their revision
        assert (ROOT / rest[0]).is_file() or "at revision" in (ROOT / page).read_text("utf-8")
        return
    if program == "bash":
        script = ROOT / rest.pop(0)
        text = script.read_text(encoding="utf-8")
        named = HAND_OVER.search(text)
        if named is None:
            return  # setup, test, and recipes, whose words are fairseq-train's
        if named[1] in ("train", "evaluate") and "--" not in rest:
            rest.insert(1, "--")  # options of fairseq follow
        rest.insert(0, named[1])
    if len(rest) < 2 or "--help" in rest:
        assert not rest or rest[0] in cli.SUBCOMMANDS or rest[0] == "--help"
        return
    module = importlib.import_module(f"fairseq_deepnet.{cli.SUBCOMMANDS[rest[0]][0]}")
    parser = cli.Parser(prog=rest[0])
    module.add_arguments(parser)
    parse = getattr(module, "parse", cli.Parser.parse)
    try:
        parse(parser, [*words_of(parser, variables), *rest[1:]])
    except ValueError as error:
        if "arguments are required" not in str(error):  # the text names parts of commands
            raise


def test_the_documentation_prints_commands() -> None:
    assert len({command for _, command in printed()}) > 100
