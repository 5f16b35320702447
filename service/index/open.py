"""Opens an index to write or to read, if the model at hand is the one it was made with."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import ModelNotFound
from service.errors import StorageFailure
from service.index.errors import IndexMismatch, IndexNotFound
from service.index.place import PLACE
from service.index.schema import Recipe
from service.index.store import DATABASE, IndexStore

if TYPE_CHECKING:
    from engine.async_engine import AsyncEngine  # `lln search --by words` does without torch

_log = logging.getLogger(__name__)


def open_to_write(place: Path, recipe: Recipe, *, rebuild: bool = False) -> IndexStore:
    """The index in this folder, made if there is none. The writer's lock must be held."""
    if rebuild:
        for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"):
            (place / name).unlink(missing_ok=True)
    try:
        store = IndexStore.open(place)
    except IndexNotFound:
        return IndexStore.create(place, recipe)
    try:
        has_moved = store.recipe.folder != recipe.folder and place == Path(recipe.folder) / PLACE
        made = replace(store.recipe, folder=recipe.folder) if has_moved else store.recipe
        _check_recipe(made, recipe, place)
        store.prepare_to_write()
        if has_moved:  # with its folder, in which all paths of files are the same
            store.set_recipe(made)
    except BaseException:
        store.close()
        raise
    return store


def has_records(place: Path) -> bool:
    """Whether the index in this folder keeps records. What is no index has none."""
    try:
        with IndexStore.open(place) as store:
            return store.recipe.records
    except (IndexMismatch, IndexNotFound, StorageFailure):
        return False


def open_to_read(place: Path) -> IndexStore:
    return IndexStore.open(place)


def _check_recipe(made: Recipe, wanted: Recipe, place: Path) -> None:
    for name, (is_now, would_be) in made.differences(wanted).items():
        how = f"with {name} {is_now}, not {would_be}"
        keeps_it = f"--model {is_now} or " if name == "model" else ""
        again = "lln index FOLDER --rebuild"
        if name == "records":
            how = "with records" if is_now else "without records"
            again += " --records" if would_be else ""
        raise IndexMismatch(
            f"the index in {place} was made {how}; give {keeps_it}another --index, or make a new "
            f"one: {again}",
            param=name,
            limit=str(is_now),
            actual=str(would_be),
        )


def served_model(recipe: Recipe, engine: AsyncEngine) -> str:
    """The engine's name of the index's model. Raises if it would give other vectors than those of
    the index."""
    from engine.checkpoint.locate import lasting_name

    named = (name for name in engine.models if lasting_name(name) == recipe.model)
    try:
        info = engine.resolve(next(named, recipe.model))
    except ModelNotFound:
        served = ", ".join(engine.models)
        raise IndexMismatch(
            f"the index was made with the model {recipe.model}, which is not loaded; "
            f"loaded are {served}",
            limit=served,
            actual=recipe.model,
        ) from None
    if (info.revision, info.calibration) != (recipe.revision, recipe.calibration):
        raise IndexMismatch(
            f"the index was made with other weights of {recipe.model}; rebuild it: "
            "lln index --rebuild",
            limit=recipe.revision,
            actual=info.revision,
        )
    if recipe.dtype not in (None, info.dtype):
        _log.warning(
            "the index was made in %s and is searched in %s: cosines differ slightly",
            recipe.dtype,
            info.dtype,
        )
    return info.name
