"""Writes the Grafana dashboards in dashboards/*.json.

python -m deploy.grafana.build          writes the files
python -m deploy.grafana.build --check  fails if the files are out of date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from deploy.grafana.boards import DASHBOARDS
from deploy.grafana.panels import dashboard_json

OUTPUT = Path(__file__).resolve().parent / "dashboards"


def rendered() -> dict[Path, str]:
    return {
        OUTPUT / f"{dashboard.uid}.json": json.dumps(dashboard_json(dashboard), indent=2) + "\n"
        for dashboard in DASHBOARDS
    }


def on_disk() -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in OUTPUT.glob("*.json")}


def main() -> None:
    if "--check" not in sys.argv[1:]:
        for path in on_disk().keys() - rendered().keys():
            path.unlink()
        for path, text in rendered().items():
            path.write_text(text, encoding="utf-8")
    elif rendered() != on_disk():
        sys.exit(f"{OUTPUT} is out of date: run 'python -m deploy.grafana.build'")


if __name__ == "__main__":
    main()
