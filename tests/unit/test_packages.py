"""Which package may import which: from scores to checkpoints, from plans to schemes, not back."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "fairseq_deepnet"
ORDER = ("evaluation", "translation", "export", "checkpoints")
LAYERS = ("planning", "models", "footprint", "criterions", "optim", "modules", "schemes")
"""In both, each may import those after it."""


def imported(path: Path) -> Iterator[str]:
    """Modules that a file imports anywhere in it, functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = path.relative_to(PACKAGE.parent).parts[: -node.level or None]
            module = ".".join([*above, node.module or ""] if node.level else [node.module or ""])
            yield module
            yield from (f"{module}.{alias.name}".replace("..", ".") for alias in node.names)


@pytest.mark.parametrize(
    ("order", "name"), [(order, name) for order in (ORDER, LAYERS) for name in order]
)
def test_imports_run_one_way(order: tuple[str, ...], name: str) -> None:
    forbidden = {f"{PACKAGE.name}.{before}" for before in order[: order.index(name)]}
    found = {
        (path.name, module)
        for path in (PACKAGE / name).rglob("*.py")
        for module in imported(path)
        if ".".join(module.split(".")[:2]) in forbidden
    }
    assert not found


def test_no_import_waits_in_a_function_for_a_cycle_to_be_over() -> None:
    """But for what needs ctranslate2, which not everybody has installed, and what needs torch and
    fairseq, which an exported folder is translated without.
    """
    waiting = {
        str(path.relative_to(PACKAGE))
        for name in ORDER
        for path in (PACKAGE / name).rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE.name)
    }
    assert waiting == {"export/command.py", "export/layout.py", "translation/opening.py"}
