"""Reads a model folder in the format of Hugging Face or sentence-transformers.

Folders are only data. Their code is never run, whatever `auto_map` says.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias, get_args

from engine.checkpoint.json_files import (
    invalid_json,
    read_json,
    read_object,
    read_object_if_present,
)
from engine.checkpoint.weights import Weights, open_weights
from engine.errors import CheckpointError

_logger = logging.getLogger(__name__)

Family: TypeAlias = Literal["bert", "roberta", "xlm-roberta", "distilbert", "modernbert"]
Pooling: TypeAlias = Literal["mean", "cls", "max", "none"]

FAMILIES: tuple[Family, ...] = get_args(Family)

EXPORTED_TYPE = "lln"
"""The model type in folders that `lln export` writes. Their config.json holds that of the encoder,
and the pooling."""

_PREFIX_OF_FAMILY: Mapping[Family, str] = {
    "bert": "bert.",
    "roberta": "roberta.",
    "xlm-roberta": "roberta.",
    "distilbert": "distilbert.",
    "modernbert": "model.",
}

_POOLING_OF_SWITCH: Mapping[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One model on disk, whose files have been read and checked."""

    folder: Path
    transformer_folder: Path
    """The folder of config.json, the tokenizer and the weights; usually `folder` itself."""

    family: Family
    config: Mapping[str, Any]  # the content of config.json
    pooling: Pooling
    normalize: bool
    max_seq_length: int | None  # where sentence-transformers truncates
    lowercase: bool  # before the tokenizer
    prompts: Mapping[str, str]
    default_prompt_name: str | None
    weights: Weights
    sha256: str  # of the weights


@dataclass(frozen=True, kw_only=True)
class _Modules:
    """The pipeline of modules.json."""

    transformer: Path
    pooling: Pooling
    normalize: bool


def read_checkpoint(folder: Path, *, expected_sha256: str | None = None) -> Checkpoint:
    """Reads and checks a folder. Tensors stay on disk until they are needed."""
    modules = _read_modules(folder)
    config, exported_pooling = _read_config(modules.transformer / "config.json")
    family = _family(config, modules.transformer / "config.json")
    settings = _sentence_settings(modules.transformer)
    prompts, default_prompt_name = _read_prompts(folder / "config_sentence_transformers.json")
    weights = open_weights(modules.transformer, prefix=_PREFIX_OF_FAMILY[family])
    return Checkpoint(
        folder=folder,
        transformer_folder=modules.transformer,
        family=family,
        config=config,
        pooling=exported_pooling or modules.pooling,
        normalize=modules.normalize,
        max_seq_length=settings.get("max_seq_length"),
        lowercase=bool(settings.get("do_lower_case", False)),
        prompts=prompts,
        default_prompt_name=default_prompt_name,
        weights=weights,
        sha256=_checked_sha256(weights, expected_sha256),
    )


def is_readable(folder: Path) -> bool:
    """Whether the folder's configuration is one that `read_checkpoint` supports."""
    try:
        path = _read_modules(folder).transformer / "config.json"
        _family(_read_config(path)[0], path)
    except CheckpointError:
        return False
    return True


def _read_config(path: Path) -> tuple[Mapping[str, Any], Pooling | None]:
    """The encoder's configuration, and the pooling if this file states it."""
    config = read_object(path)
    if config.get("model_type") != EXPORTED_TYPE:
        return config, None
    encoder, pooling = config.get("encoder"), config.get("pooling")
    if not isinstance(encoder, dict) or pooling not in ("mean", "cls", "max"):
        raise invalid_json(path, 'expected "encoder", an object, and "pooling": mean, cls or max')
    return encoder, pooling


def _family(config: Mapping[str, Any], path: Path) -> Family:
    model_type = config.get("model_type")
    known = ", ".join(FAMILIES)
    if model_type not in FAMILIES:
        raise CheckpointError(
            f"{path} is of family {model_type!r}; known families: {known}",
            code="unknown_family",
            limit=known,
            actual=str(model_type),
        )
    positions = config.get("position_embedding_type", "absolute")
    if positions != "absolute":
        raise _unsupported("config", f"{path} has {positions!r} positions", "absolute")
    family: Family = model_type
    return family


def _read_modules(folder: Path) -> _Modules:
    path = folder / "modules.json"
    if not path.exists():
        _logger.warning("%s has no modules.json: using mean pooling and normalized vectors", folder)
        return _Modules(transformer=folder, pooling="mean", normalize=True)
    kinds_and_folders = [_module(entry, path) for entry in _entries(path)]
    kinds = [kind for kind, _ in kinds_and_folders]
    for kind in kinds:
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise _unsupported_module(path, kind)
    if kinds not in _KNOWN_PIPELINES:
        raise _unsupported_module(path, " -> ".join(kinds))
    folders = dict(kinds_and_folders)
    return _Modules(
        transformer=folders["Transformer"],
        pooling=_read_pooling(folders["Pooling"]) if "Pooling" in folders else "none",
        normalize="Normalize" in folders,
    )


_KNOWN_PIPELINES = (
    ["Transformer"],
    ["Transformer", "Normalize"],
    ["Transformer", "Pooling"],
    ["Transformer", "Pooling", "Normalize"],
)


def _entries(path: Path) -> Sequence[Mapping[str, Any]]:
    entries = read_json(path)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise invalid_json(path, "expected a list of objects")
    return entries


def _module(entry: Mapping[str, Any], path: Path) -> tuple[str, Path]:
    """A module's kind, which is its class name, and its folder."""
    kind, place = entry.get("type"), entry.get("path")
    if not isinstance(kind, str) or not isinstance(place, str):
        raise invalid_json(path, 'every module needs a "type" and a "path"')
    package, _, name = kind.partition(".")
    if package != "sentence_transformers":  # a class defined in the folder itself
        raise _unsupported_module(path, kind)
    relative = PurePosixPath(place)
    if relative.is_absolute() or ".." in relative.parts:
        raise invalid_json(path, f"path {place!r} leaves the folder")
    return name.rpartition(".")[2], path.parent / relative


def _read_pooling(folder: Path) -> Pooling:
    path = folder / "config.json"
    config = read_object(path)
    modes = _pooling_modes(config, path)
    if config.get("include_prompt", True) is not True:
        raise _unsupported("pooling", f"{path} excludes the prompt", "include_prompt: true")
    match modes:
        case ["mean" | "cls" | "max" as mode]:
            pooling: Pooling = mode
            return pooling
    raise _unsupported("pooling", f"{path} pools by {' + '.join(modes)}", "one of mean, cls, max")


def _pooling_modes(config: Mapping[str, Any], path: Path) -> list[str]:
    """Older files have a switch for each mode, newer ones name the modes."""
    named = config.get("pooling_mode")
    if named is not None:
        modes = [named] if isinstance(named, str) else named
        if not isinstance(modes, list) or not all(isinstance(mode, str) for mode in modes):
            raise invalid_json(path, f"pooling_mode is {named!r}, expected one name or a list")
        return modes
    return [mode for key, mode in _POOLING_OF_SWITCH.items() if config.get(key)] or ["mean"]


def _sentence_settings(folder: Path) -> dict[str, Any]:
    """Settings of sentence_bert_config.json; older versions put the family in the file name."""
    paths = sorted(folder.glob("sentence_*_config.json"))
    settings = read_object(paths[0]) if paths else {}
    length = settings.get("max_seq_length")
    is_number = isinstance(length, int) and not isinstance(length, bool)
    if length is not None and not (is_number and length >= 1):
        raise invalid_json(paths[0], f"max_seq_length is {length!r}, expected a number of tokens")
    lowercase = settings.get("do_lower_case")
    if not isinstance(lowercase, bool | None):
        raise invalid_json(paths[0], f"do_lower_case is {lowercase!r}, expected true or false")
    return settings


def _read_prompts(path: Path) -> tuple[dict[str, str], str | None]:
    config = read_object_if_present(path)
    prompts = config.get("prompts") or {}
    default = config.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(p, str) for p in prompts.values()):
        raise invalid_json(path, "prompts must be an object of strings")
    if default is not None and default not in list(prompts):  # it may be of any type
        raise invalid_json(path, f"default_prompt_name {default!r} is not one of the prompts")
    return prompts, default


def _checked_sha256(weights: Weights, expected: str | None) -> str:
    actual = weights.sha256()
    if expected is not None and actual != expected:
        raise CheckpointError(
            f"{weights.paths[0]} is not the published file: its SHA-256 is {actual}, "
            f"expected {expected}",
            code="checksum_mismatch",
            limit=expected,
            actual=actual,
        )
    return actual


def _unsupported_module(path: Path, kind: str) -> CheckpointError:
    return _unsupported("module", f"{path} has {kind}", "Transformer, then Pooling, then Normalize")


def _unsupported(what: str, found: str, supported: str) -> CheckpointError:
    return CheckpointError(
        f"{found}, which is not supported; supported: {supported}",
        code=f"unsupported_{what}",
        limit=supported,
        actual=found,
    )
