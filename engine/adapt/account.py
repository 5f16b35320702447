"""What a model was trained on, as training wrote it down beside the model's calibration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from engine.adapt.documents import DATA_FILE
from engine.checkpoint.calibration import has_own_calibration, shipped_calibration
from engine.checkpoint.json_file import read_object
from engine.errors import CheckpointError
from engine.model.embedding_model import EmbeddingModel

Account: TypeAlias = Mapping[str, Any]
"""What `lln adapt --train` writes to data.json. Under "before": that of the training which it went
on from, or null where it was unknown."""

_OF_A_SOURCE = {"trained_on", "held_out"}


def account_of(model: EmbeddingModel) -> Account | None:
    """None where there is none: a calibration alone writes none, and a file of that name may be
    another program's."""
    try:
        found = read_object(_place(model))
    except CheckpointError:
        return None
    return found if _is_account(found) else None


def write_account(folder: Path, account: Account) -> None:
    (folder / DATA_FILE).write_text(json.dumps(account, indent=2) + "\n", encoding="utf-8")


def accounts_in(account: Account | None) -> Iterator[Account | None]:
    """A training's own account, and those of the trainings before it."""
    yield account
    while account is not None and "before" in account:
        before = account["before"]
        account = before if _is_account(before) else None
        yield account


def _place(model: EmbeddingModel) -> Path:
    """Beside the calibration, which either the folder has or this package."""
    checkpoint = model.checkpoint
    if has_own_calibration(checkpoint.folder):
        return checkpoint.folder / DATA_FILE
    return shipped_calibration(checkpoint.sha256, model.name).with_suffix(f".{DATA_FILE}")


def _is_account(found: object) -> bool:
    sources = found.get("sources") if isinstance(found, Mapping) else None
    return isinstance(sources, Mapping) and all(
        isinstance(part, Mapping) and part.keys() >= _OF_A_SOURCE for part in sources.values()
    )
