"""Installs other vendors' clients that do not fit beside the rest, each group in a folder apart.

    python tools/install_clients.py

Each needs versions of something that others need in other versions. A file of tests/clients/ pins a
group; its other dependencies are those of the environment. Tests run a group in a process of its
own, with its folder first on the path, and skip if it is missing. Takes some ten seconds.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

GROUPS = Path(__file__).resolve().parent.parent / "tests" / "clients"
TARGET = Path(sys.prefix) / "clients"


def main() -> int:
    for pins in sorted(GROUPS.glob("*.txt")):
        folder = TARGET / pins.stem
        done = folder / pins.name
        if done.exists() and done.read_bytes() == pins.read_bytes():
            continue
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*command, "--target", str(folder), "-r", str(pins)], check=True)
        shutil.copy(pins, done)
        print(f"{pins.stem}: {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
