"""The image and the compose file fit the server's settings and ports."""

from __future__ import annotations

import re
import tomllib

import pytest

from service.environment import setting_rows
from tests.project.conftest import STOP_MARGIN_S, SettingsOf
from tests.project.monitoring import DEPLOY, load_yaml

DOCKERFILE = DEPLOY.parent / "Dockerfile"
PINNED_IMAGE = re.compile(r"[\w./-]+:v?\d+\.\d+[\w.-]*")


def test_compose_images_are_pinned() -> None:
    images = [service["image"] for service in load_yaml("compose.yaml")["services"].values()]
    assert [image for image in images if not PINNED_IMAGE.fullmatch(image)] == []


def stages() -> dict[str, str]:
    """The text of each stage of the Dockerfile, by its name; the last one has none."""
    parts = re.split(r"^FROM (.+)$", DOCKERFILE.read_text(), flags=re.MULTILINE)
    return {
        head.partition(" AS ")[2]: text for head, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def build_arguments() -> dict[str, str]:
    return dict(re.findall(r"^ARG (\w+)=(.+)$", DOCKERFILE.read_text(), re.MULTILINE))


def test_dockerfile_images_are_pinned() -> None:
    images = re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE)
    assert set(images) == {"${PYTHON_IMAGE}", "dependencies"}
    assert PINNED_IMAGE.fullmatch(build_arguments()["PYTHON_IMAGE"])


def test_an_edit_of_the_source_rebuilds_no_dependency() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", stages()["dependencies"], re.MULTILINE)
    assert copied == ["pyproject.toml constraints.txt", "tools/install.py"]
    assert "install.py dependencies" in stages()["dependencies"]
    assert "COPY --from=dependencies /opt/lln /opt/lln" in stages()[""]


def test_the_image_can_do_what_settings_ask_for() -> None:
    """A message that says "install the extra" names one that the image has, or that of pictures."""
    texts = [path.read_text() for path in (DEPLOY.parent / "service").rglob("*.py")]
    asked = {name for text in texts for name in re.findall(r"the extra [\"'\s]*(\w+)'", text)}
    assert asked == {"tracing", "figures"}
    assert "tracing" in build_arguments()["EXTRAS"].split(",")


def test_labels_tell_the_version() -> None:
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]+)"', stages()[""]))
    assert (labels["version"], labels["licenses"]) == (project["version"], project["license"])


@pytest.mark.parametrize("image", ["python", "python:latest", "prom/prometheus:main"])
def test_an_image_that_can_change_is_not_pinned(image: str) -> None:
    assert not PINNED_IMAGE.fullmatch(image)


def test_compose_mounts_files_that_exist() -> None:
    for service in load_yaml("compose.yaml")["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source


def test_compose_gpu_changes_services_that_exist() -> None:
    changed = set(load_yaml("compose.gpu.yaml")["services"])
    assert changed <= set(load_yaml("compose.yaml")["services"])


def test_compose_waits_longer_than_the_server_takes_to_stop(settings_of: SettingsOf) -> None:
    server = load_yaml("compose.yaml")["services"]["lln"]
    grace_s = float(server["stop_grace_period"].removesuffix("s"))
    # One without a value is the host's, which may have none.
    given = {name: value for name, value in server["environment"].items() if value is not None}
    settings = settings_of(given)
    stop_s = settings.shutdown_notice_s + settings.engine.drain_timeout_s
    assert grace_s >= stop_s + STOP_MARGIN_S


def test_compose_needs_no_substitution() -> None:
    """podman-compose 1.0 passes `${NAME:-}` on as it is written."""
    assert "${" not in (DEPLOY / "compose.yaml").read_text()


def test_compose_leaves_process_1_to_an_init() -> None:
    """The kernel keeps signals from a process 1 that has no handler for them yet."""
    assert load_yaml("compose.yaml")["services"]["lln"]["init"] is True


def test_settings_named_in_deployment_exist() -> None:
    known = {row.variable for row in setting_rows()}
    text = DOCKERFILE.read_text() + (DEPLOY / "compose.yaml").read_text()
    named = set(re.findall(r"\bLLN_[A-Z_]+", text))
    assert named
    assert named - known == set()


def test_dockerfile_exposes_the_default_ports() -> None:
    defaults = {row.variable: row.default for row in setting_rows()}
    (exposed,) = re.findall(r"^EXPOSE (.*)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert exposed.split() == [defaults["LLN_HTTP_PORT"], defaults["LLN_GRPC_PORT"]]


def test_dockerfile_copies_what_exists() -> None:
    """And what .dockerignore, which ignores all it does not name, lets through."""
    shown = re.findall(r"^!(\S+)$", (DEPLOY.parent / ".dockerignore").read_text(), re.MULTILINE)
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
    sources = [source for line in copies for source in line.split()]
    assert sources
    for source in sources:
        assert (DEPLOY.parent / source).exists(), source
        assert source in shown
