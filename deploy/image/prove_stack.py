"""Asks the running stack of compose.yaml whether it does what it promises.

`prove_stack.sh` calls this as root, with podman installed. It needs Python's standard library only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

SERVER, PROMETHEUS = "http://127.0.0.1:8000", "http://127.0.0.1:9090"
ALERTMANAGER, GRAFANA = "http://127.0.0.1:9093", "http://127.0.0.1:3000"
CONTAINER = "lln_lln_1"
WITHIN_S = 240
ALERT = "LLNDown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--revision", required=True)
    parser.add_argument("services", nargs="+")
    chosen = parser.parse_args()
    result: dict[str, Any] = {"revision": chosen.revision, "services": chosen.services}
    started = time.monotonic()
    wait_for("the server is ready", lambda: fetch(f"{SERVER}/health/ready"))
    result["seconds_to_ready"] = round(time.monotonic() - started, 1)
    result["dimensions"] = dimensions()
    check(result["dimensions"] == 384, f"vectors have {result['dimensions']} dimensions")
    result["container"] = container()
    wait_for("Prometheus scrapes it", lambda: value('up{job="lln"}') == 1)
    result["requests_counted"] = wait_for(
        "Prometheus has counted the request", lambda: value("sum(lln_requests_total)")
    )
    result["rules"] = healthy_rules()
    wait_for("Prometheus knows Alertmanager", lambda: num_alertmanagers() == 1)
    result["prometheus"] = asked(f"{PROMETHEUS}/api/v1/status/buildinfo")["data"]["version"]
    result["alertmanager"] = asked(f"{ALERTMANAGER}/api/v2/status")["versionInfo"]["version"]
    if "grafana" in chosen.services:
        wait_for("Grafana has its dashboards", lambda: asked(f"{GRAFANA}/api/search?type=dash-db"))
    result["alert"] = alert_of_a_stopped_server()
    print(json.dumps(result, indent=2))


def dimensions() -> int:
    body = json.dumps({"model": "default", "input": "The whole document, read in one pass."})
    answer = asked(f"{SERVER}/v1/embeddings", body.encode())
    return len(answer["data"][0]["embedding"])


def container() -> dict[str, bool]:
    """Whether it runs as compose.yaml says."""
    told = podman("inspect", CONTAINER)
    (found,) = json.loads(told)
    capabilities = found.get("EffectiveCaps") or []
    read_only = found["HostConfig"]["ReadonlyRootfs"]
    check(not capabilities, f"it has the capabilities {capabilities}")
    check(read_only, "its root is read-only")
    return {"root_is_read_only": True, "has_no_capabilities": True}


def healthy_rules() -> int:
    groups = wait_for("rules are evaluated", lambda: evaluated(rule_groups()))
    rules = [rule for group in groups for rule in group["rules"]]
    ill = [rule["name"] for rule in rules if rule["health"] != "ok"]
    check(not ill, f"rules that fail: {ill}")
    return len(rules)


def rule_groups() -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = asked(f"{PROMETHEUS}/api/v1/rules")["data"]["groups"]
    return groups


def evaluated(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups, once each of their rules has been tried."""
    known = [rule["health"] != "unknown" for group in groups for rule in group["rules"]]
    return groups if known and all(known) else []


def num_alertmanagers() -> int:
    return len(asked(f"{PROMETHEUS}/api/v1/alertmanagers")["data"]["activeAlertmanagers"])


def alert_of_a_stopped_server() -> dict[str, Any]:
    podman("stop", "--time", "40", CONTAINER)
    stopped = time.monotonic()
    (state,) = json.loads(podman("inspect", CONTAINER))
    exit_status = state["State"]["ExitCode"]
    check(exit_status == 0, f"it ended with {exit_status}")
    wait_for(f"{ALERT} reaches Alertmanager", lambda: ALERT in active_alerts())
    told_s = time.monotonic() - stopped
    podman("start", CONTAINER)
    started = time.monotonic()
    wait_for(f"{ALERT} ends", lambda: ALERT not in active_alerts())
    return {
        "name": ALERT,
        "exit_status_of_the_server": exit_status,
        "seconds_until_told": round(told_s, 1),
        "seconds_until_it_ended": round(time.monotonic() - started, 1),
    }


def active_alerts() -> set[str]:
    alerts = asked(f"{ALERTMANAGER}/api/v2/alerts?active=true")
    return {alert["labels"]["alertname"] for alert in alerts}


def value(query: str) -> float | None:
    """What Prometheus answers; None if it has no such series yet."""
    asking = urllib.parse.urlencode({"query": query})
    found = asked(f"{PROMETHEUS}/api/v1/query?{asking}")["data"]["result"]
    return float(found[0]["value"][1]) if found else None


def asked(url: str, body: bytes | None = None) -> Any:
    return json.loads(fetch(url, body))


def fetch(url: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        read: bytes = answer.read()
        return read


def podman(*arguments: str) -> str:
    return subprocess.run(["podman", *arguments], check=True, capture_output=True, text=True).stdout


def wait_for(what: str, ask: Callable[[], Any]) -> Any:
    """What `ask` answers, once it is more than nothing."""
    deadline = time.monotonic() + WITHIN_S
    why: object = None
    while time.monotonic() < deadline:
        try:
            if answer := ask():
                return answer
        except (OSError, ValueError) as error:  # nobody listens yet, or not in full
            why = error
        time.sleep(1)
    raise SystemExit(f"not proved within {WITHIN_S} s: {what} ({why})")


def check(holds: bool, what: str) -> None:
    if not holds:
        raise SystemExit(f"not proved: {what}")


if __name__ == "__main__":
    main()
