"""All text is read and written as UTF-8, whatever the locale: every call names its encoding."""

import ast

import pytest

from tests.support.shell import ROOT

PARTS = ("fairseq_deepnet", "benchmarks", "tests", "scripts")
PROCESSES = ("run", "Popen", "check_output", "check_call", "call")


def constant(call: ast.Call, place: int, name: str) -> object:
    """An argument as it is written; None where it is not there or no constant."""
    values = [call.args[place]] if len(call.args) > place else []
    values += [keyword.value for keyword in call.keywords if keyword.arg == name]
    return values[0].value if values and isinstance(values[0], ast.Constant) else None


def leaves_encoding_out(call: ast.Call) -> bool:
    function = call.func
    is_method = isinstance(function, ast.Attribute)
    name = getattr(function, "attr" if is_method else "id", "")
    keywords = {keyword.arg for keyword in call.keywords}
    if {"encoding", None} & keywords:  # named, or perhaps among **options
        return False
    if name in ("read_text", "write_text"):
        return is_method and len(call.args) <= (name == "write_text")
    if name == "open":
        owner = getattr(getattr(function, "value", None), "id", "")
        if owner in ("gzip", "bz2", "lzma"):  # bytes, unless text is asked for
            return "t" in str(constant(call, 1, "mode"))
        mode = constant(call, 0 if is_method else 1, "mode")
        if is_method and call.args and not isinstance(mode, str):
            return False  # another kind of open, of a path
        return "b" not in str(mode or "r") and set(str(mode or "r")) <= set("rwxa+t")
    if name in PROCESSES:
        return bool({"text", "universal_newlines"} & keywords)
    if name in ("NamedTemporaryFile", "TemporaryFile", "SpooledTemporaryFile", "fdopen"):
        mode = constant(call, 1 if name == "fdopen" else 0, "mode")
        return "b" not in str(mode or ("r" if name == "fdopen" else "w+b"))
    return name in ("TextIOWrapper", "FileHandler")


@pytest.mark.parametrize("part", PARTS)
def test_every_file_names_the_encoding_of_the_text_it_reads_and_writes(part: str) -> None:
    calls = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / part).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and leaves_encoding_out(node)
    ]
    assert not calls, "name encoding='utf-8' here: " + ", ".join(calls)
