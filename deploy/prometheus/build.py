"""Writes the rules as the PrometheusRule resource that the Prometheus operator reads.

python -m deploy.prometheus.build          writes the file
python -m deploy.prometheus.build --check  fails if the file is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

RULES = Path(__file__).resolve().parent / "rules"
OUTPUT = RULES.parents[1] / "kubernetes" / "prometheus-operator" / "rules.yaml"


def rendered() -> str:
    files = [yaml.safe_load(path.read_text("utf-8")) for path in sorted(RULES.glob("*.yml"))]
    resource = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "lln", "labels": {"app.kubernetes.io/name": "lln"}},
        "spec": {"groups": [group for file in files for group in file["groups"]]},
    }
    note = "# Made of deploy/prometheus/rules by `python -m deploy.prometheus.build`.\n"
    return note + yaml.safe_dump(resource, sort_keys=False, width=100)


def main() -> None:
    if "--check" not in sys.argv[1:]:
        OUTPUT.write_text(rendered(), encoding="utf-8")
    elif not OUTPUT.exists() or OUTPUT.read_text(encoding="utf-8") != rendered():
        sys.exit(f"{OUTPUT} is out of date: run 'python -m deploy.prometheus.build'")


if __name__ == "__main__":
    main()
