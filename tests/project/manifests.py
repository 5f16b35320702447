"""Resources of Kubernetes as files and charts have them, and the server that they start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
QUEUE_SCALING = FOLDER / "queue-scaling"
TRACING = FOLDER / "tracing"
OPERATOR = FOLDER / "prometheus-operator"
OLDEST_KUBERNETES = "1.25.0"


def resources(folder: Path = FOLDER) -> Iterator[dict[str, Any]]:
    """What `kubectl apply -f` finds in a folder, which does not look into those inside."""
    for path in sorted(folder.glob("*.yaml")):
        yield from yaml.safe_load_all(path.read_text())


def check_schema(one: Mapping[str, Any]) -> None:
    """Against the schemas of the oldest Kubernetes that we support, and of the newest."""
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is for dev")
    for version in (OLDEST_KUBERNETES, validate.latest_version()):
        validate.validate(one, version, strict=True)


def environment_of(
    container: Mapping[str, Any], pod: str = "lln-6d5f9c7b8-x2x4z"
) -> dict[str, str]:
    """What the server of a pod with this name is given."""
    fields = {"metadata.name": pod}
    found = {}
    for variable in container["env"]:
        field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        found[variable["name"]] = fields[field] if field else variable["value"]
    return found
