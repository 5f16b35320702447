"""Measures the shape of the code: files, functions, imports between rooms, circles, the README.

    python tools/measure_structure.py [CHECKOUT ...] [--json]

With several checkouts (two worktrees, say) their figures stand side by side. It reads the files as
text and runs none of them. A room is a folder of a package, or a module loose in the package.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PACKAGES = ("kernels", "engine", "service", "lln")
GENERATED = "pb"
ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", nargs="*", type=Path, default=[ROOT])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    measured = {str(checkout): measure(checkout) for checkout in arguments.checkouts}
    if arguments.json:
        print(json.dumps(measured, indent=1))
        return
    for name in next(iter(measured.values())):
        print(f"{name:<34}" + "".join(f"{found[name]!s:>14}" for found in measured.values()))


def measure(checkout: Path) -> dict[str, Any]:
    """The figures of one checkout."""
    modules = {module_name(path, checkout): path for path in module_paths(checkout)}
    lengths = [len(path.read_text(encoding="utf-8").splitlines()) for path in modules.values()]
    functions = [length for path in modules.values() for length in function_lengths(path)]
    graph = import_graph(modules)
    figures: dict[str, Any] = {"files": len(modules)}
    for package in PACKAGES:
        inside = [path for path in modules.values() if path.is_relative_to(checkout / package)]
        figures[f"files in {package}/"] = len(inside)
    figures["files loose in engine/"] = len(list((checkout / "engine").glob("*.py")))
    figures["lines"] = sum(lengths)
    figures["lines of a file, median"] = round(statistics.median(lengths))
    figures["lines of a file, most"] = max(lengths)
    figures["functions"] = len(functions)
    figures["lines of a function, median"] = round(statistics.median(functions))
    figures["lines of a function, most"] = max(functions)
    figures["arrows between rooms"] = len(arrows(graph))
    figures["modules in import circles"] = sum(map(len, circles(graph)))
    figures["rooms in import circles"] = sum(map(len, circles(arrow_graph(graph))))
    figures["characters of README.md"] = len((checkout / "README.md").read_text(encoding="utf-8"))
    return figures


def module_paths(checkout: Path) -> Iterator[Path]:
    """Every module of the packages that a person wrote."""
    for package in PACKAGES:
        for path in sorted((checkout / package).rglob("*.py")):
            if GENERATED not in path.relative_to(checkout).parts:
                yield path


def module_name(path: Path, checkout: Path) -> str:
    parts = path.relative_to(checkout).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """The folder a module lies in: `engine.model` of engine.model.layers. A module that lies loose
    in its package, such as engine.types, is a room of its own."""
    return ".".join(module.split(".")[:2])


def function_lengths(path: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.end_lineno - node.lineno + 1


def import_graph(modules: Mapping[str, Path]) -> dict[str, set[str]]:
    """What each module imports of the others, inside functions and for types included."""
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = {imported for node in ast.walk(tree) for imported in imports_of(node, modules)}
        graph[name] = found - {name}
    return graph


def imports_of(node: ast.AST, modules: Mapping[str, Path]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
    elif isinstance(node, ast.ImportFrom) and node.module is not None and node.module in modules:
        whole = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        submodules = {name: path for name, path in whole.items() if path in modules}
        yield from submodules.values()
        if len(submodules) < len(whole):
            yield node.module


def arrows(graph: Mapping[str, set[str]]) -> set[tuple[str, str]]:
    """Pairs of rooms, the first of which imports the second."""
    pairs = ((room_of(name), room_of(other)) for name, others in graph.items() for other in others)
    return {(one, other) for one, other in pairs if one != other}


def arrow_graph(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    rooms: dict[str, set[str]] = {room_of(name): set() for name in graph}
    for one, other in arrows(graph):
        rooms[one].add(other)
    return rooms


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other (strongly connected components of two or more)."""
    reached = {name: reachable(graph, name) for name in graph}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other])) for name in graph
    }
    return [list(group) for group in sorted(groups) if len(group) > 1]


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for other in graph[waiting.pop()]:
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


if __name__ == "__main__":
    main()
