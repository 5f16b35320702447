"""deploy/helm/lln: rendered by Helm's own library, held against deploy/kubernetes and the server.

The library is the extra `chart`; without it these tests skip.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from engine.checkpoint.locate import list_models
from service.metrics import Metrics
from tests.project.conftest import STOP_MARGIN_S, SettingsOf
from tests.project.manifests import (
    FOLDER,
    OPERATOR,
    QUEUE_SCALING,
    ROOT,
    TRACING,
    check_schema,
    environment_of,
    resources,
)

CHART = ROOT / "deploy" / "helm" / "lln"
ADDED_LABELS = {
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
}
UNKNOWN_KINDS = {"PodMonitor", "ServiceMonitor", "PrometheusRule", "ScaledObject"}
"""Of operators: Kubernetes has no schema of them."""

Values = dict[str, Any]
Resources = dict[tuple[str, str], dict[str, Any]]

TRACES = {"tracing": {"endpoint": "http://collector.monitoring:4317"}}
CASES: dict[str, Values] = {
    "default": {},
    "queue": {"autoscaling": {"kind": "queue"}},
    "keda": {"autoscaling": {"kind": "keda", "minReplicas": 3}},
    "fixed": {"autoscaling": {"kind": "none"}, "replicas": 3, "service": {"type": "LoadBalancer"}},
    "one pod": {
        "autoscaling": {"kind": "none"},
        "replicas": 1,
        "disruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
    },
    "gpu": {
        "image": {"repository": "registry.example/lln-cuda", "digest": "sha256:" + "0" * 64},
        "gpu": {"count": 1},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "nodeSelector": {"accelerator": "h100"},
    },
    "secure": {
        "tls": {"secret": "lln-tls"},
        "keys": {"secret": "our-keys", "required": True},
        "image": {"pullSecrets": ["registry"]},
        "metrics": {"monitor": {"enabled": True, "kind": "ServiceMonitor"}},
    },
    "observed": {
        **TRACES,
        "metrics": {
            "monitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "rules": {"enabled": True, "labels": {"release": "prometheus"}},
        },
        "podAnnotations": {"team": "search"},
    },
    "hub": {
        "models": ["default", "intfloat/e5-base"],
        "modelStorage": {"enabled": True, "storageClass": "nfs"},
        "networkPolicy": {"hub": True},
    },
    "own models": {
        "models": ["/models/ours"],
        "modelStorage": {"enabled": True, "existingClaim": "ours", "readOnly": True},
        "settings": {"LLN_MAX_STORED_BYTES": 10**10, "LLN_TRACE_SHARE": 0.5},
    },
}


@pytest.fixture(scope="module")
def helm() -> Any:
    return pytest.importorskip("helm_python", reason="helm-python-sdk is the extra chart")


@pytest.fixture(scope="module")
def chart(helm: Any) -> Iterator[Any]:
    with helm.Chart.load(CHART) as loaded:
        yield loaded


def rendered(
    chart: Any, values: Values, *, name: str = "lln", namespace: str = "default"
) -> Resources:
    chart.validate_schema(values)
    files = chart.render(values, name=name, namespace=namespace)
    found = [
        one
        for path, text in files.items()
        if path.endswith(".yaml")
        for one in yaml.safe_load_all(text)
        if one is not None
    ]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def pod_of(found: Resources, name: str = "lln") -> dict[str, Any]:
    spec: dict[str, Any] = found["Deployment", name]["spec"]["template"]["spec"]
    return spec


def without_labels(value: Any) -> Any:
    """What a manifest says, without the labels that the chart adds; lists of names as mappings."""
    if isinstance(value, list):
        if value and all(isinstance(one, dict) and "name" in one for one in value):
            return {one["name"]: without_labels(one) for one in value}
        return [without_labels(one) for one in value]
    if isinstance(value, dict):
        return {key: without_labels(one) for key, one in value.items() if key not in ADDED_LABELS}
    return value


def assert_says(found: Any, expected: Any, where: str = "") -> None:
    """All that a manifest says stands in the rendered resource. Lists are equal."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), where
        for key, value in expected.items():
            assert key in found, f"{where}.{key}"
            assert_says(found[key], value, f"{where}.{key}")
    else:
        assert found == expected, where


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_what_is_rendered_is_of_the_schema_and_starts_the_server(
    chart: Any, values: Values, settings_of: SettingsOf
) -> None:
    found = rendered(chart, values)
    for (kind, _), one in found.items():
        if kind not in UNKNOWN_KINDS:
            check_schema(one)
    pod = pod_of(found)
    (container,) = pod["containers"]
    environment = environment_of(container)
    ours = {name: value for name, value in environment.items() if name.startswith("LLN_")}
    settings = settings_of({name: value for name, value in ours.items() if "TLS" not in name})
    stop_s = settings.shutdown_notice_s + settings.engine.drain_timeout_s
    assert pod["terminationGracePeriodSeconds"] >= stop_s + STOP_MARGIN_S
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }


def test_the_default_says_what_the_manifests_say(chart: Any) -> None:
    found = rendered(chart, {})
    manifests = {(one["kind"], one["metadata"]["name"]): one for one in resources()}
    assert set(found) == set(manifests)
    for key, one in manifests.items():
        assert_says(without_labels(found[key]), without_labels(one), "/".join(key))
    (ours,) = pod_of(found)["containers"]
    (theirs,) = pod_of(manifests)["containers"]
    assert environment_of(ours) == environment_of(theirs)


@pytest.mark.parametrize(
    ("values", "folder"),
    [
        ({"autoscaling": {"kind": "queue"}}, QUEUE_SCALING),
        (TRACES, TRACING),
        ({"metrics": {"monitor": {"enabled": True}, "rules": {"enabled": True}}}, OPERATOR),
    ],
    ids=["queue", "tracing", "operator"],
)
def test_options_say_what_the_folders_of_manifests_say(
    chart: Any, values: Values, folder: Any
) -> None:
    found = rendered(chart, values)
    for one in resources(folder):
        key = (one["kind"], one["metadata"]["name"])
        assert_says(without_labels(found[key]), without_labels(one), "/".join(key))


def test_tls_says_what_the_patch_says(chart: Any) -> None:
    patch = yaml.safe_load((FOLDER / "tls" / "patch.yaml").read_text())
    found = rendered(chart, {"tls": {"secret": "lln-tls"}})["Deployment", "lln"]
    assert_says(without_labels(found), without_labels(patch))


def test_two_releases_beside_each_other_share_nothing(chart: Any) -> None:
    one, other = rendered(chart, {}, name="lln"), rendered(chart, {}, name="books")
    assert not set(one) & set(other)
    selectors = [
        json.dumps(found["Deployment", name]["spec"]["selector"])
        for found, name in ((one, "lln"), (other, "books-lln"))
    ]
    assert selectors[0] != selectors[1]
    for found, name in ((one, "lln"), (other, "books-lln")):
        labels = found["Deployment", name]["spec"]["template"]["metadata"]["labels"]
        assert found["Service", name]["spec"]["selector"] == labels
        assert found["Service", f"{name}-grpc"]["spec"]["selector"] == labels
        assert found["NetworkPolicy", name]["spec"]["podSelector"]["matchLabels"] == labels
        assert found["PodDisruptionBudget", name]["spec"]["selector"]["matchLabels"] == labels
        target = found["HorizontalPodAutoscaler", name]["spec"]["scaleTargetRef"]["name"]
        assert target == name


def test_keda_scales_by_the_queued_tokens_of_the_release(chart: Any) -> None:
    found = rendered(chart, CASES["keda"], name="books", namespace="search")
    assert "HorizontalPodAutoscaler" not in {kind for kind, _ in found}
    scaled = found["ScaledObject", "books-lln"]["spec"]
    assert scaled["scaleTargetRef"]["name"] == "books-lln"
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (3, 10)
    queue, cpu = scaled["triggers"]
    metric, labels = queue["metadata"]["query"].split("(")[-1].split("{", 1)
    assert metric in Metrics().labels
    assert labels.startswith('namespace="search", pod=~"books-lln-[a-z0-9]+-[a-z0-9]+"}[1m]')
    assert queue["metadata"]["threshold"] == "16384"
    assert cpu == {"type": "cpu", "metricType": "Utilization", "metadata": {"value": "80"}}
    autoscaler = rendered(chart, {})["HorizontalPodAutoscaler", "lln"]["spec"]
    advanced = scaled["advanced"]["horizontalPodAutoscalerConfig"]
    assert advanced["behavior"] == autoscaler["behavior"]


def test_a_service_monitor_reads_the_service_as_the_job_that_alerts_know(chart: Any) -> None:
    found = rendered(chart, CASES["secure"])
    monitor = found["ServiceMonitor", "lln"]["spec"]
    service = found["Service", "lln"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["metadata"]["labels"][monitor["jobLabel"]] == "lln"
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["scheme"] == "https", "the server speaks TLS"
    template = found["Deployment", "lln"]["spec"]["template"]["metadata"]
    assert "annotations" not in template, "a scrape by annotations would count each replica twice"


def test_models_keys_and_gpus_reach_the_pod(chart: Any) -> None:
    (hub,) = pod_of(rendered(chart, CASES["hub"]))["containers"]
    assert environment_of(hub)["LLN_MODELS"] == "default,intfloat/e5-base"
    assert environment_of(hub)["HF_HOME"] == "/models/hub"
    assert "default" in {model.name for model in list_models()}
    own = pod_of(rendered(chart, CASES["own models"]))
    (container,) = own["containers"]
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in container["volumeMounts"]
    assert {"name": "models", "persistentVolumeClaim": {"claimName": "ours"}} in own["volumes"]
    assert environment_of(container)["LLN_MAX_STORED_BYTES"] == "10000000000"
    (secure,) = pod_of(rendered(chart, CASES["secure"]))["containers"]
    assert secure["envFrom"] == [{"secretRef": {"name": "our-keys", "optional": False}}]
    (gpu,) = pod_of(rendered(chart, CASES["gpu"]))["containers"]
    assert gpu["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert environment_of(gpu)["LLN_ENGINE__DEVICE"] == "cuda"
    assert gpu["image"] == "registry.example/lln-cuda@sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"replica": 2}, "additional properties 'replica' not allowed"),
        ({"autoscaling": {"kind": "hpa"}}, "must be one of 'cpu', 'queue', 'keda', 'none'"),
        ({"autoscaling": {"cpuPercent": 180}}, "at '/autoscaling/cpuPercent': maximum"),
        ({"replicas": "two"}, "at '/replicas': got string, want integer"),
        ({"gpu": {"count": -1}}, "at '/gpu/count': minimum"),
        ({"settings": {"MAX_BODY_BYTES": 1}}, "'MAX_BODY_BYTES' does not match pattern"),
        ({"tracing": {"endpoint": "collector:4317"}}, "at '/tracing/endpoint'"),
        ({"resources": {"limits": {"memory": "8 GB"}}}, "at '/resources/limits/memory'"),
        ({"image": {"digest": "latest"}}, "at '/image/digest'"),
        ({"modelStorage": {"accessModes": []}}, "at '/modelStorage/accessModes': minItems"),
        ({"models": ["a,b"]}, "at '/models/0'"),
        (
            {"settings": {"LLN_MODELS": "default"}},
            "settings.LLN_MODELS is set by the chart: give mo",
        ),
        (
            {"settings": {"LLN_REPLICA": "a"}},
            "settings.LLN_REPLICA is set by the chart: leave it out",
        ),
        (
            {"autoscaling": {"minReplicas": 20}},
            "minReplicas is 20 and must be at most autoscaling.max",
        ),
        (
            {"autoscaling": {"minReplicas": 1}},
            "minAvailable is 1 of 1 replicas, so no node could be",
        ),
        ({"networkPolicy": {"hub": True}}, "networkPolicy.hub needs modelStorage.enabled"),
        (
            {"networkPolicy": {"hub": True}, "modelStorage": {"enabled": True, "readOnly": True}},
            "networkPolicy.hub cannot be combined with modelStorage.readOnly",
        ),
    ],
)
def test_bad_values_are_refused(helm: Any, chart: Any, values: Values, complaint: str) -> None:
    with pytest.raises(helm.HelmError) as refused:
        rendered(chart, values)
    assert complaint in str(refused.value)


def test_the_chart_is_of_this_version_and_has_nothing_to_complain_of(helm: Any) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (about["version"], about["appVersion"]) == (version, version)
    found = helm.lint(CHART, {}, strict=True)
    messages = [one["error"] for one in found["messages"]]
    assert messages == ["icon is recommended"]


def test_notes_name_what_was_deployed(chart: Any) -> None:
    notes: Mapping[str, str] = chart.render(CASES["secure"], name="books", namespace="search")
    text = notes["lln/templates/NOTES.txt"]
    for told in ("https://books-lln.search:8000", "dns:///books-lln-grpc.search:50051"):
        assert told in text
    assert "requires no key" not in text
    open_notes = chart.render({}, name="books", namespace="search")["lln/templates/NOTES.txt"]
    assert "requires no key" in open_notes


def test_each_value_is_in_the_schema_and_the_other_way_round() -> None:
    def names(schema: Mapping[str, Any]) -> set[str]:
        found = set()
        for name, one in schema.get("properties", {}).items():
            found |= {f"{name}.{below}" for below in names(one)} or {name}
        return found

    def given(values: Mapping[str, Any], schema: Mapping[str, Any]) -> set[str]:
        found = set()
        for name, value in values.items():
            below = schema["properties"][name]
            inner = given(value, below) if "properties" in below else set()
            found |= {f"{name}.{one}" for one in inner} or {name}
        return found

    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    optional = {
        "global",
        *(f"resources.{kind}.ephemeral-storage" for kind in ("requests", "limits")),
    }
    assert names(schema) - optional == given(values, schema)
