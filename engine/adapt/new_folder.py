"""A new model's folder: writable before the work begins, and never loaded before it is whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.errors import InvalidInput

MARK = ".lln-adapt"
"""The file by which a place to work is known as ours. A folder of the same name that lacks it is
somebody else's, whatever it holds."""
_MEANING = "lln adapt works in this folder, and removes it with all that it holds.\n"


@contextmanager
def workplace(
    out: Path, name: str, is_kept: Callable[[Path], bool] = lambda _: False
) -> Iterator[Path]:
    """A folder inside `out`, which must hold nothing, or else such work that was stopped.

    It lies inside and not beside, since `out` may be all that may be written, or a disk of its
    own. Afterwards it is gone; after a failure too, unless it is worth going on from.
    """
    place, is_new = out / name, not out.exists()
    if not is_new and any(out.iterdir()) and not (place / MARK).exists():
        raise InvalidInput(f"{out} is not empty", code="folder_not_empty", param="out")
    try:
        place.mkdir(parents=True, exist_ok=True)
        # Written anew each time: a folder that is there may still be read-only.
        write_whole(place / MARK, lambda mark: mark.write_text(_MEANING, encoding="utf-8"))
        yield place
    except BaseException:
        if not is_kept(place):
            shutil.rmtree(place, ignore_errors=True)
            _remove_if_empty(out, is_new)
        raise
    _discard(place)


def publish(built: Path, out: Path) -> None:
    """Moves a finished model up into `out`. What no loader does without comes last, so that nobody
    takes a part of the model, stopped in between, for all of it."""
    for entry in sorted(built.iterdir(), key=_is_needed):
        place = out / entry.name
        if place.is_dir():
            shutil.rmtree(place)
        entry.replace(place)


def _is_needed(entry: Path) -> tuple[bool, bool]:
    """Most by every model that has its configuration here; else by one that has it below."""
    return entry.name == "config.json", entry.name == "modules.json"


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """A file that is there whole or not at all, whenever the machine stops."""
    unfinished = path.with_name(f"{path.name}.new")
    write(unfinished)
    unfinished.replace(path)


def _discard(folder: Path) -> None:
    """Renamed first: what is half removed must not look like something to go on from."""
    removed = folder.with_name(f"{folder.name}.removed")
    folder.rename(removed)
    shutil.rmtree(removed)


def _remove_if_empty(out: Path, is_new: bool) -> None:
    if is_new:
        with suppress(OSError):
            out.rmdir()
