"""Writes what is installed here, Python distributions and Debian packages, as CycloneDX JSON.

    python tools/write_sbom.py FILE

The image has it at /opt/lln/sbom.cdx.json.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote


def sbom() -> dict[str, Any]:
    components = [*python_distributions(), *debian_packages()]
    components.sort(key=lambda component: component["purl"])
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}


def python_distributions() -> Iterator[dict[str, Any]]:
    for distribution in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        found = component(
            name, distribution.version, f"pkg:pypi/{name}@{quote(distribution.version)}"
        )
        if "License-Expression" in distribution.metadata:
            licence = distribution.metadata["License-Expression"]
            found["licenses"] = [{"expression": licence}]
        yield found


def debian_packages() -> Iterator[dict[str, Any]]:
    """None on other systems."""
    if shutil.which("dpkg-query") is None:
        return
    query = ["dpkg-query", "--show", "--showformat", "${Package} ${Version} ${Architecture}\\n"]
    listing = subprocess.run(query, check=True, capture_output=True, text=True)
    for line in listing.stdout.splitlines():
        name, version, architecture = line.split()
        purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={architecture}"
        yield component(name, version, purl)


def component(name: str, version: str, purl: str) -> dict[str, Any]:
    return {"type": "library", "name": name, "version": version, "purl": purl}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(sbom(), indent=1) + "\n", encoding="utf-8")
