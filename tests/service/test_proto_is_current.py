"""service/pb is what the generator makes of proto/, no more and no less."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATE = "-m grpc_tools.protoc -I service/pb=proto --python_out=. --pyi_out=. --grpc_python_out=."


def generated_files(root: Path) -> dict[Path, str]:
    folder = root / "service" / "pb"
    found = [*folder.rglob("*.py"), *folder.rglob("*.pyi")]
    return {path.relative_to(root): path.read_text() for path in found}


def test_generated_code_is_current(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="the generator comes with the dev extra")
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    protos = [path.relative_to(tmp_path) for path in tmp_path.rglob("*.proto")]
    subprocess.run([sys.executable, *GENERATE.split(), *protos], cwd=tmp_path, check=True)

    assert generated_files(ROOT) == generated_files(tmp_path)


def test_proto_folder_holds_no_python() -> None:
    # A Python package called proto would shadow another distribution's.
    assert not list((ROOT / "proto").rglob("*.py*"))
