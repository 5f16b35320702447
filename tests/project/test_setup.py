"""Set-up: which build of torch a machine gets, and what is said when there is none for it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lln_install", ROOT / "tools" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SetPlatform = Callable[..., None]


@pytest.fixture
def on_machine(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> SetPlatform:
    """Stands in for pip's choice and the network, which a test cannot have in every state."""

    def set_machine(*, platform: str, registry_has_cuda: bool, index_answers: bool) -> None:
        def brings_cuda(*options: str) -> bool:
            return registry_has_cuda and install.CPU_INDEX not in options

        monkeypatch.setattr(install.sys, "platform", platform)
        monkeypatch.setattr(install, "brings_cuda", brings_cuda)
        monkeypatch.setattr(install, "answers", lambda url: index_answers)

    return set_machine


def test_a_cpu_build_at_hand_is_taken_as_it_is(
    install: ModuleType, on_machine: SetPlatform
) -> None:
    on_machine(platform="linux", registry_has_cuda=False, index_answers=True)
    assert install.cpu_torch_options() == ()


def test_linux_without_gpu_takes_the_cpu_index(
    install: ModuleType, on_machine: SetPlatform
) -> None:
    on_machine(platform="linux", registry_has_cuda=True, index_answers=True)
    assert install.cpu_torch_options() == ("--extra-index-url", install.CPU_INDEX)


def test_linux_without_gpu_or_index_refuses_cuda(
    install: ModuleType, on_machine: SetPlatform
) -> None:
    on_machine(platform="linux", registry_has_cuda=True, index_answers=False)
    with pytest.raises(install.SetupError, match="gigabytes of CUDA"):
        install.cpu_torch_options()


def test_macos_asks_nothing(install: ModuleType, on_machine: SetPlatform) -> None:
    on_machine(platform="darwin", registry_has_cuda=True, index_answers=False)
    assert install.cpu_torch_options() == ()


def test_a_probe_of_nothing_is_a_no(install: ModuleType) -> None:
    assert install.answers("http://127.0.0.1:9") is False


def test_a_machine_without_python_is_told_so(tmp_path: Path) -> None:
    command = ["/bin/sh", str(ROOT / "tools" / "setup.sh"), str(tmp_path / "venv"), "run"]
    environment = {"PATH": os.environ["PATH"], "PYTHON": str(tmp_path / "no-python")}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert finished.returncode == 1
    assert finished.stderr.strip().splitlines() == [
        "LLN needs Python 3.11 or newer and found none (set PYTHON=/path/to/python to name one)"
    ]


def test_the_python_that_is_named_may_have_a_path_with_spaces(tmp_path: Path) -> None:
    """It stands in for a Python of which only an environment is asked, and that one's Python tells
    what it would run."""
    python, venv = tmp_path / "a folder" / "python3", tmp_path / "an environment"
    python.parent.mkdir()
    python.write_text(
        """#!/bin/sh
        if [ "$2" = venv ]; then
            mkdir -p "$4/bin"
            printf '#!/bin/sh\\necho "$@"\\n' >"$4/bin/python"
            chmod +x "$4/bin/python"
        fi
        """
    )
    python.chmod(0o755)
    command = ["/bin/sh", str(ROOT / "tools" / "setup.sh"), str(venv), "run"]
    environment = {"PATH": os.environ["PATH"], "PYTHON": str(python)}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (finished.stdout, finished.stderr) == ("tools/install.py run\n", "")


def test_make_asks_for_profiles_that_exist(install: ModuleType) -> None:
    makefile = (ROOT / "Makefile").read_text()
    asked = set(re.findall(r"installed-([a-z]+)", makefile))
    assert asked == set(install.EXTRAS) == set(install.CONTAINS)


def test_a_profile_marks_all_that_it_contains(
    install: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install.sys, "prefix", str(tmp_path))
    install.stamp("dev")
    assert {path.name for path in tmp_path.iterdir()} == {
        "installed-run",
        "installed-test",
        "installed-dev",
    }


def test_dependencies_are_those_that_pip_would_read(install: ModuleType) -> None:
    found = install.requirements(("service", "tracing"))
    assert {"torch>=2.11", "opentelemetry-sdk>=1.45"} <= set(found)
    with pytest.raises(install.SetupError, match="no extras"):
        install.requirements(("service", "trace"))


def test_the_bill_of_materials_names_what_is_installed(tmp_path: Path) -> None:
    written = tmp_path / "sbom.json"
    script = ROOT / "tools" / "write_sbom.py"
    subprocess.run([sys.executable, str(script), str(written)], check=True)
    sbom = json.loads(written.read_text())
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.5")
    purls = [component["purl"] for component in sbom["components"]]
    assert len(set(purls)) == len(purls)
    assert f"pkg:pypi/pytest@{pytest.__version__}" in purls


@pytest.mark.skipif(torch.version.cuda is not None, reason="a CUDA build of torch is installed")
def test_no_cuda_package_beside_a_cpu_torch(install: ModuleType) -> None:
    install.refuse_cuda_leftovers()
