"""Three wings, and imports run one way: experiments -> tools -> plugin, and in no circle."""

from __future__ import annotations

import itertools

import grimp
import pytest

NAME = "fairseq_deepnet"
WINGS = ("experiments", "tools")
TOOLS = ("evaluation", "translation", "export", "checkpoints")
PLUGIN = ("models", "footprint", "criterions", "optim", "modules", "schemes")
"""In all three, each may import those after it; what is in no list is the plugin's."""

Imports = list[tuple[str, str]]
"""Pairs of a module and one that it imports directly."""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(NAME, cache_dir=None)


@pytest.fixture(scope="module")
def imports(graph: grimp.ImportGraph) -> Imports:
    return [(a, b) for a in graph.modules for b in graph.find_modules_directly_imported_by(a)]


def wing(module: str) -> str:
    part = module.split(".")[1] if "." in module else "plugin"
    return {"cli": "command line"}.get(part, part if part in WINGS else "plugin")


def test_the_plugin_imports_no_tool_and_no_tool_an_experiment(imports: Imports) -> None:
    ranks = {"command line": 3, "experiments": 2, "tools": 1, "plugin": 0}
    assert not [(a, b) for a, b in imports if ranks[wing(b)] > ranks[wing(a)]]


@pytest.mark.parametrize("order", [tuple(f"tools.{name}" for name in TOOLS), PLUGIN])
def test_within_a_wing_imports_run_one_way(imports: Imports, order: tuple[str, ...]) -> None:
    packages = [f"{NAME}.{name}." for name in order]
    for above, below in itertools.combinations(packages, 2):
        of_lower = [(a, b) for a, b in imports if f"{a}.".startswith(below)]
        assert not [(a, b) for a, b in of_lower if f"{b}.".startswith(above)]


def test_no_module_imports_itself_by_way_of_others(
    graph: grimp.ImportGraph, imports: Imports
) -> None:
    assert not [(a, b) for a, b in imports if graph.find_shortest_chain(b, a)]
