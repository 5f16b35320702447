"""deploy/kubernetes: that its parts fit each other, and the server they deploy."""

from __future__ import annotations

import re
import tomllib
from inspect import signature
from typing import Any

import pytest
import yaml

from service.app import create_app
from service.client import LLNClient
from service.environment import load_settings, setting_rows
from service.metrics import Metrics
from service.settings import Settings
from tests.project.conftest import STOP_MARGIN_S, SettingsOf
from tests.project.manifests import (
    FOLDER,
    OLDEST_KUBERNETES,
    OPERATOR,
    QUEUE_SCALING,
    ROOT,
    TRACING,
    check_schema,
    environment_of,
    resources,
)

UNITS = {"Mi": 2**20, "Gi": 2**30}

PROCESS_BYTES = 2**30
"""Of the process with the models of its default settings, a batch and freed memory that it keeps:
idle it holds 0.6 GiB."""


def of_kind(kind: str, name: str = "lln") -> dict[str, Any]:
    (found,) = [
        one for one in resources() if (one["kind"], one["metadata"]["name"]) == (kind, name)
    ]
    return found


def in_bytes(quantity: str) -> int:
    return int(quantity[:-2]) * UNITS[quantity[-2:]]


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    spec: dict[str, Any] = of_kind("Deployment")["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    assert isinstance(only, dict)
    return only


@pytest.fixture
def settings(container: dict[str, Any], settings_of: SettingsOf) -> Settings:
    return settings_of(environment_of(container))


@pytest.fixture(scope="module")
def defaults() -> dict[str, str]:
    return {row.variable: row.default for row in setting_rows()}


def test_every_resource_is_of_the_schema() -> None:
    for one in [*resources(), *resources(QUEUE_SCALING), *resources(TRACING)]:
        check_schema(one)


def test_the_oldest_kubernetes_is_the_documented_one() -> None:
    assert f"Kubernetes {OLDEST_KUBERNETES} or newer" in (ROOT / "docs/operations.md").read_text()


def test_each_grpc_client_can_reach_every_pod() -> None:
    """A name without an address of its own resolves to the pods."""
    service = of_kind("Service", "lln-grpc")["spec"]
    assert service["clusterIP"] == "None"
    assert service["selector"] == of_kind("Service")["spec"]["selector"]
    assert {port["name"] for port in service["ports"]} == {"grpc"}


def test_benchmark_runs_carry_the_name_of_their_pod(settings: Settings) -> None:
    assert settings.replica_name == "lln-6d5f9c7b8-x2x4z"


def test_pods_that_share_an_address_have_no_batch_api(settings: Settings) -> None:
    """A batch would be started on one pod, of a file that another one has."""
    assert of_kind("HorizontalPodAutoscaler")["spec"]["minReplicas"] > 1
    assert settings.batch_folder == ""


def test_memory_is_requested_whole(container: dict[str, Any]) -> None:
    resources = container["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"]


def test_keys_come_from_a_secret(container: dict[str, Any]) -> None:
    assert container["envFrom"] == [{"secretRef": {"name": "lln-keys", "optional": True}}]


def test_probes_speak_tls_where_the_server_does(container: dict[str, Any]) -> None:
    patch = yaml.safe_load((FOLDER / "tls" / "patch.yaml").read_text())
    assert patch["spec"]["template"]["metadata"]["annotations"] == {"prometheus.io/scheme": "https"}
    pod = patch["spec"]["template"]["spec"]
    (patched,) = pod["containers"]
    assert patched["name"] == container["name"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert patched[probe]["httpGet"] == container[probe]["httpGet"] | {"scheme": "HTTPS"}
    (mount,) = patched["volumeMounts"]
    assert {volume["name"] for volume in pod["volumes"]} == {mount["name"]}
    settings = {variable["name"]: variable["value"] for variable in patched["env"]}
    assert {row.variable for row in setting_rows()} >= set(settings)
    assert all(path.startswith(mount["mountPath"]) for path in settings.values())


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
    pod: dict[str, Any], settings: Settings
) -> None:
    assert settings.shutdown_notice_s > 0, "requests arrive until the pod has left the endpoints"
    stop_s = settings.shutdown_notice_s + settings.engine.drain_timeout_s
    assert pod["terminationGracePeriodSeconds"] >= stop_s + STOP_MARGIN_S


def test_memory_is_enough_for_all_that_may_be_held_at_once(
    container: dict[str, Any], settings: Settings
) -> None:
    engine = settings.engine
    assert engine.max_sweep_bytes, "0 takes half of what is free, which then is no longer"
    bodies = settings.max_open_requests * settings.max_body_bytes
    texts = bodies  # what was read out of them, while they are still there
    held = PROCESS_BYTES + bodies + texts + engine.max_sweep_bytes + engine.max_open_bytes
    assert held <= in_bytes(container["resources"]["limits"]["memory"])


def test_a_client_asks_for_no_more_at_once_than_is_read(settings: Settings) -> None:
    its_limit = signature(LLNClient).parameters["max_request_bytes"].default
    assert its_limit <= settings.max_body_bytes // 2, "what surrounds the texts takes room too"


def test_pods_are_given_no_variables_that_read_like_settings(pod: dict[str, Any]) -> None:
    """For the Service lln they would be LLN_PORT, LLN_SERVICE_HOST and so on."""
    assert of_kind("Service")["metadata"]["name"] == "lln"
    assert pod["enableServiceLinks"] is False


def test_the_image_is_this_version(container: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert container["image"] == f"lln:{project['version']}"


def test_the_operator_scrapes_the_pods_as_the_job_that_alerts_know(
    container: dict[str, Any],
) -> None:
    (monitor,) = [one for one in resources(OPERATOR) if one["kind"] == "PodMonitor"]
    template = of_kind("Deployment")["spec"]["template"]["metadata"]
    assert monitor["spec"]["selector"]["matchLabels"] == template["labels"]
    assert template["labels"][monitor["spec"]["jobLabel"]] == "lln"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in container["ports"]}
    assert endpoint["path"] == template["annotations"]["prometheus.io/path"]


def test_traces_may_leave_to_the_port_of_the_documented_collector() -> None:
    (policy,) = resources(TRACING)
    assert policy["spec"]["podSelector"] == of_kind("NetworkPolicy")["spec"]["podSelector"]
    ports = {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
    text = (TRACING / "network.yaml").read_text()
    (documented,) = re.findall(r"LLN_OTLP_ENDPOINT=http://[\w.]+:(\d+)", text)
    assert ports == {int(documented), 53}


def test_replicas_are_scaled_by_what_every_cluster_has() -> None:
    """An autoscaler that cannot read one of its metrics scales up by the others, and never down."""
    (metric,) = of_kind("HorizontalPodAutoscaler")["spec"]["metrics"]
    assert (metric["type"], metric["resource"]["name"]) == ("Resource", "cpu")


def test_scaling_on_waiting_tokens_is_the_same_but_for_that_metric() -> None:
    (autoscaler,) = resources(QUEUE_SCALING)
    added, *others = autoscaler["spec"]["metrics"]
    assert added["pods"]["metric"]["name"] in Metrics().labels
    autoscaler["spec"]["metrics"] = others
    assert autoscaler == of_kind("HorizontalPodAutoscaler")


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
