"""Three wings, and imports run one way: experiments -> tools -> plugin, and in no circle."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import grimp
import pytest

NAME = "fairseq_deepnet"
WINGS = ("experiments", "tools")
TOOLS = ("evaluation", "translation", "export", "checkpoints")
PLUGIN = ("models", "footprint", "criterions", "optim", "modules", "schemes")
"""In all three, each may import those after it; what is in no list is the plugin's."""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(NAME, cache_dir=None)


def imports_between(graph: grimp.ImportGraph, above: str, below: str) -> Iterator[str]:
    """Imports from one package into another, "importer -> imported"."""
    for module in sorted(graph.modules):
        if f"{module}.".startswith(f"{NAME}.{above}."):
            for imported in sorted(graph.find_modules_directly_imported_by(module)):
                if f"{imported}.".startswith(f"{NAME}.{below}."):
                    yield f"{module} -> {imported}"


def wing(module: str) -> str:
    part = module.split(".")[1] if "." in module else "plugin"
    return {"cli": "command line"}.get(part, part if part in WINGS else "plugin")


def test_the_plugin_imports_no_tool_and_no_tool_an_experiment(graph: grimp.ImportGraph) -> None:
    ranks = {"command line": 3, "experiments": 2, "tools": 1, "plugin": 0}
    upward = {
        f"{module} -> {imported}"
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
        if ranks[wing(imported)] > ranks[wing(module)]
    }
    assert not upward


@pytest.mark.parametrize("order", [tuple(f"tools.{name}" for name in TOOLS), PLUGIN])
def test_within_a_wing_imports_run_one_way(
    graph: grimp.ImportGraph, order: tuple[str, ...]
) -> None:
    for number, above in enumerate(order):
        for below in order[number + 1 :]:
            assert not list(imports_between(graph, below, above))


def test_no_module_imports_itself_by_way_of_others(graph: grimp.ImportGraph) -> None:
    circles = {
        module
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
        if graph.find_shortest_chain(imported, module)
    }
    assert not circles


@pytest.mark.parametrize("module", ["", ".cli", ".tools", ".experiments"])
def test_what_needs_neither_torch_nor_fairseq_does_not_import_them(module: str) -> None:
    program = (
        f"import sys, {NAME}{module}; print(*{{'torch', 'fairseq', 'numpy'}} & set(sys.modules))"
    )
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True
    )
    assert process.stdout.strip() == ""
