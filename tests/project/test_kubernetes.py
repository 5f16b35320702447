"""deploy/kubernetes: that its parts fit each other, and the server they deploy."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.app import create_app
from service.metrics import Metrics
from service.settings import load_settings, setting_rows

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))


def resources() -> Iterator[dict[str, Any]]:
    for path in FILES:
        yield from yaml.safe_load_all(path.read_text())


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = [one for one in resources() if one["kind"] == kind]
    return found


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    spec: dict[str, Any] = of_kind("Deployment")["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    assert isinstance(only, dict)
    return only


@pytest.fixture(scope="module")
def defaults() -> dict[str, str]:
    return {row.variable: row.default for row in setting_rows()}


def test_every_resource_is_of_the_schema() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is for dev")
    for one in resources():
        validate.validate(one, validate.latest_version(), strict=True)


def test_everything_selects_the_pods_of_the_deployment() -> None:
    labels = of_kind("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert of_kind("Deployment")["spec"]["selector"]["matchLabels"] == labels
    assert of_kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert of_kind("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    assert of_kind("Service")["spec"]["selector"] == labels
    target = of_kind("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (
        "Deployment",
        of_kind("Deployment")["metadata"]["name"],
    )


def test_ports_are_the_defaults_and_their_names_are_used(
    container: dict[str, Any], defaults: dict[str, str]
) -> None:
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {
        "http": int(defaults["LLN_HTTP_PORT"]),
        "grpc": int(defaults["LLN_GRPC_PORT"]),
    }
    assert {port["targetPort"] for port in of_kind("Service")["spec"]["ports"]} == set(ports)
    allowed = [rule["ports"] for rule in of_kind("NetworkPolicy")["spec"]["ingress"]]
    assert {port["port"] for one in allowed for port in one} == set(ports)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports


def test_probes_ask_routes_that_exist(container: dict[str, Any]) -> None:
    paths = create_app(load_settings()).openapi()["paths"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in paths
    # Restarting a pod because it is not ready would lose what it still has to answer.
    assert container["livenessProbe"]["httpGet"]["path"] == "/health/live"


def test_a_pod_is_given_longer_than_it_takes_to_stop(
    pod: dict[str, Any], container: dict[str, Any], defaults: dict[str, str]
) -> None:
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = float(defaults["LLN_ENGINE__DRAIN_TIMEOUT_S"])
    assert pod["terminationGracePeriodSeconds"] > pause + drain


def test_settings_exist_and_are_accepted(
    container: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], str(variable.get("value", 4)))
    load_settings()  # refuses unknown names and bad values


def test_pods_are_given_no_variables_that_read_like_settings(pod: dict[str, Any]) -> None:
    """For the Service lln they would be LLN_PORT, LLN_SERVICE_HOST and so on."""
    assert of_kind("Service")["metadata"]["name"] == "lln"
    assert pod["enableServiceLinks"] is False


def test_the_image_is_this_version(container: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert container["image"] == f"lln:{project['version']}"


def test_replicas_are_scaled_by_a_metric_that_exists() -> None:
    metrics = of_kind("HorizontalPodAutoscaler")["spec"]["metrics"]
    (name,) = [one["pods"]["metric"]["name"] for one in metrics if one["type"] == "Pods"]
    assert name in Metrics().labels


def test_containers_may_do_as_little_as_possible(
    pod: dict[str, Any], container: dict[str, Any]
) -> None:
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    user = (ROOT / "Dockerfile").read_text()
    assert f"USER {pod['securityContext']['runAsUser']}" in user
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
