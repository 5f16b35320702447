"""Finds a model: in a folder, an installed package, the Hugging Face cache or on the hub."""

from __future__ import annotations

import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from engine.checkpoint.calibration import has_own_calibration
from engine.checkpoint.folder import is_readable
from engine.checkpoint.registry import PUBLISHED_MODELS, PublishedModel, find_published
from engine.checkpoint.weights import has_weights
from engine.errors import CheckpointError

Source: TypeAlias = Literal["folder", "package", "cache", "hub"]

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_HUB_FILES = ("*.safetensors", "*.json", "*.txt")
_HUB_UNUSED = ("onnx/*", "openvino/*", "coreml/*")


@dataclass(frozen=True, kw_only=True)
class CheckpointLocation:
    folder: Path
    source: Source
    name: str  # the published name, or the requested one
    expected_sha256: str | None = None  # of the weights, if known


@dataclass(frozen=True, kw_only=True)
class Caches:
    """Where checkpoints are cached on this machine."""

    unpacked: Path = field(default_factory=lambda: Path.home() / ".cache" / "lln" / "checkpoints")
    """Zipped carrier packages are unpacked to this folder."""

    hub: Path | None = None
    """The Hugging Face cache; None is the default of huggingface_hub."""


@dataclass(frozen=True, kw_only=True)
class AvailableModel:
    """A model that can be loaded offline."""

    name: str
    aliases: tuple[str, ...]
    attention: Literal["softmax", "LLN+Diag"]  # unless another is requested
    source: Source
    place: Path  # a folder, or the zip file of a carrier package


def locate(model: str, *, caches: Caches | None = None) -> CheckpointLocation:
    """The first source that has this model: folder, carrier package, cache, hub."""
    caches = caches or Caches()
    published = find_published(model)
    folder = _as_folder(model)
    if _names_a_folder(model):
        return CheckpointLocation(folder=folder, source="folder", name=model)
    name = published.name if published else model
    if _is_path(model) or not _HUB_NAME.fullmatch(name):
        raise _not_found(model, [f"the folder {folder}"])
    if published and (carried := _unpacked_carrier(published, caches)):
        return _published_location(carried, "package", published)
    return _locate_on_hub(model, name, published, caches)


def lasting_name(model: str) -> str:
    """The model's name wherever a process works: that of a folder is its absolute path."""
    return str(_as_folder(model).resolve()) if _names_a_folder(model) else model


def _names_a_folder(model: str) -> bool:
    """ "default" is never a folder in the working directory; "./default" is."""
    published = find_published(model)
    if published is not None and model in published.other_names:
        return False
    folder = _as_folder(model)
    return _is_model_folder(folder) or (_is_path(model) and folder.is_dir())


def list_models(*, caches: Caches | None = None) -> list[AvailableModel]:
    """The models on this machine, carrier packages first."""
    caches = caches or Caches()
    packaged = (
        variant
        for model in PUBLISHED_MODELS
        for place in model.carried()
        for variant in _variants(model.name, "package", place)
    )
    cached = (
        variant
        for name, folder in _cached_models(caches)
        for variant in _variants(name, "cache", folder)
    )
    return [*packaged, *cached]


def _variants(name: str, source: Source, place: Path) -> Iterator[AvailableModel]:
    """The LLN+Diag models that ship for these weights, then the published model."""
    published = find_published(name)
    for converted in published.converted if published else ():
        yield AvailableModel(
            name=converted, aliases=(), attention="LLN+Diag", source=source, place=place
        )
    yield AvailableModel(
        name=name,
        aliases=published.aliases if published else (),
        attention="LLN+Diag" if has_own_calibration(place) else "softmax",
        source=source,
        place=place,
    )


def _published_location(
    folder: Path, source: Source, published: PublishedModel
) -> CheckpointLocation:
    return CheckpointLocation(
        folder=folder, source=source, name=published.name, expected_sha256=published.sha256
    )


def _as_folder(model: str) -> Path:
    try:
        return Path(model).expanduser()
    except RuntimeError:  # ~name of an unknown user
        return Path(model)


def _is_path(model: str) -> bool:
    return Path(model).is_absolute() or model.startswith((".", "~"))


def _is_model_folder(folder: Path) -> bool:
    return (folder / "config.json").is_file() or (folder / "modules.json").is_file()


# Carrier packages


def _unpacked_carrier(published: PublishedModel, caches: Caches) -> Path | None:
    place = next(published.carried(), None)
    if place is None or place.is_dir():
        return place
    return _unpack(place, caches.unpacked / published.sha256)


def _unpack(archive: Path, folder: Path) -> Path:
    """Unpacks beside the target and then renames it, so the target is complete or absent."""
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            unpacked = Path(scratch) / "model"
            with zipfile.ZipFile(archive) as file:
                file.extractall(unpacked)
            _move_unless_there(unpacked, folder)
    except (OSError, zipfile.BadZipFile) as error:
        message = f"cannot unpack {archive} to {folder}: {error}"
        raise CheckpointError(message, code="cannot_unpack", actual=str(archive)) from error
    return folder


def _move_unless_there(unpacked: Path, folder: Path) -> None:
    try:
        unpacked.rename(folder)
    except OSError:
        if not folder.is_dir():  # otherwise another process was faster
            raise
        shutil.rmtree(unpacked)


# The Hugging Face cache and hub


def _locate_on_hub(
    model: str, name: str, published: PublishedModel | None, caches: Caches
) -> CheckpointLocation:
    folder = _cached_snapshot(name, caches)
    source: Source = "cache"
    # Other tools do not cache modules.json, which states the pooling: download it from the hub.
    if folder is None or not (folder / "modules.json").exists():
        downloaded = _download(name, caches)
        if isinstance(downloaded, Path):
            folder, source = downloaded, "hub"
        elif folder is None:
            raise _not_found(model, _places(model, published, caches, downloaded))
    return CheckpointLocation(
        folder=folder,
        source=source,
        name=name,
        expected_sha256=published.sha256 if published else None,
    )


def _cached_snapshot(name: str, caches: Caches) -> Path | None:
    """A snapshot with a configuration and weights. Partial ones are ignored."""
    from huggingface_hub import try_to_load_from_cache

    for file in ("config.json", "modules.json"):
        try:
            path = try_to_load_from_cache(name, file, cache_dir=caches.hub)
        except ValueError:  # not a valid name on the hub
            return None
        if isinstance(path, str) and _is_complete(Path(path).parent):
            return Path(path).parent
    return None


def _is_complete(folder: Path) -> bool:
    """Whether the folder, or one below it, has a configuration, a tokenizer and weights."""
    return any(
        has_weights(config.parent) and _has_tokenizer(config.parent)
        for config in (folder / "config.json", *folder.glob("*/config.json"))
        if config.is_file()
    )


def _has_tokenizer(folder: Path) -> bool:
    return (folder / "tokenizer.json").is_file() or (folder / "vocab.txt").is_file()


def _download(name: str, caches: Caches) -> Path | str:
    """The downloaded folder, or the reason for a failure."""
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            name,
            cache_dir=caches.hub,
            allow_patterns=list(_HUB_FILES),
            ignore_patterns=list(_HUB_UNUSED),
        )
    except Exception as error:  # network libraries raise many types
        first_line = str(error).strip().partition("\n")[0]
        return f"{type(error).__name__}: {first_line}"
    # Without a connection this is whatever the cache has of the model.
    if not _is_complete(Path(folder)):
        return f"{name} has no configuration, tokenizer and safetensors there"
    return Path(folder)


def _cached_models(caches: Caches) -> Iterator[tuple[str, Path]]:
    for folder in sorted(_hub_cache(caches).glob("models--*")):
        name = folder.name.removeprefix("models--").replace("--", "/")
        snapshot = _cached_snapshot(name, caches)
        if snapshot is not None and is_readable(snapshot):
            yield name, snapshot


def _hub_cache(caches: Caches) -> Path:
    from huggingface_hub import constants

    return caches.hub or Path(constants.HF_HUB_CACHE)


# Errors


def _places(
    model: str, published: PublishedModel | None, caches: Caches, hub_failure: str
) -> Sequence[str]:
    carriers = published.carriers if published else ()
    return (
        f"a folder {model}",
        *(f"the package {carrier.distribution}" for carrier in carriers),
        f"the Hugging Face cache {_hub_cache(caches)}",
        f"the hub ({hub_failure})",
    )


def _not_found(model: str, places: Sequence[str]) -> CheckpointError:
    message = f"model {model!r} was not found; searched: {'; '.join(places)}"
    return CheckpointError(message, code="checkpoint_not_found", param="model", actual=model)
