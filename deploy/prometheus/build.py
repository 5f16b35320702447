"""Writes the rules as the PrometheusRule resource that the Prometheus operator reads, and as the
file of the Helm chart that makes one.

python -m deploy.prometheus.build          writes the files
python -m deploy.prometheus.build --check  fails if one is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

RULES = Path(__file__).resolve().parent / "rules"
DEPLOY = RULES.parents[1]
_NOTE = "# Made of deploy/prometheus/rules by `python -m deploy.prometheus.build`.\n"


def rendered() -> dict[Path, str]:
    """What the files hold."""
    files = [yaml.safe_load(path.read_text("utf-8")) for path in sorted(RULES.glob("*.yml"))]
    spec = {"groups": [group for file in files for group in file["groups"]]}
    resource = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "lln", "labels": {"app.kubernetes.io/name": "lln"}},
        "spec": spec,
    }
    return {
        DEPLOY / "kubernetes" / "prometheus-operator" / "rules.yaml": _as_yaml(resource),
        DEPLOY / "helm" / "lln" / "files" / "rules.yaml": _as_yaml(spec),
    }


def _as_yaml(content: object) -> str:
    return _NOTE + yaml.safe_dump(content, sort_keys=False, width=100)


def main() -> None:
    for path, content in rendered().items():
        if "--check" not in sys.argv[1:]:
            path.write_text(content, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != content:
            sys.exit(f"{path} is out of date: run 'python -m deploy.prometheus.build'")


if __name__ == "__main__":
    main()
