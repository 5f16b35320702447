"""Reads the JSON files of a model folder. Every error names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError


def read_json(path: Path) -> object:
    try:
        value: object = json.loads(path.read_bytes())
        return value
    except FileNotFoundError:
        raise missing_file(path) from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}", code="unreadable_file") from error
    except (ValueError, RecursionError) as error:
        raise invalid_json(path, str(error)) from error


def read_object(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise invalid_json(path, f"expected an object, found {type(value).__name__}")
    return value


def read_object_if_present(path: Path) -> dict[str, Any]:
    return read_object(path) if path.exists() else {}


def missing_file(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} is missing", code="missing_file", actual=path.name)


def invalid_json(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path} is not valid: {reason}", code="invalid_json", actual=path.name)
