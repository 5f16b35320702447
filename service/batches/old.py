"""What goes: a file that is deleted, and what is old, which is files that have expired, and batches
that ended long ago, with their files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from service.batches.database import INPUT_OF, REACHED_AT, UNFINISHED, Execute
from service.batches.records import INPUT

_AT_ONCE = 200
"""Entries of each kind that are removed in one go: others wait meanwhile."""

_EXPIRED = f"""
SELECT id FROM files WHERE expires_at <= ?
AND id NOT IN (SELECT {INPUT_OF} FROM batches WHERE {UNFINISHED}) LIMIT {_AT_ONCE}
"""
_ENDED = f"""
SELECT id, json_extract(document, '$.output_file_id'), json_extract(document, '$.error_file_id')
FROM batches WHERE {REACHED_AT} <= ? AND NOT ({UNFINISHED}) LIMIT {_AT_ONCE}
"""
_UNUSED = f"""
SELECT id FROM files WHERE expires_at IS NULL AND created_at <= ? AND purpose = '{INPUT}'
AND NOT EXISTS (SELECT 1 FROM batches WHERE {INPUT_OF} = +files.id) LIMIT {_AT_ONCE}
"""
"""The plus takes the column's type away: the index has none, and is not used otherwise."""

_WITHOUT_FILES = f"""
SELECT number FROM batches WHERE NOT ({UNFINISHED}) AND NOT EXISTS (SELECT 1 FROM files WHERE id IN
(json_extract(document, '$.output_file_id'), json_extract(document, '$.error_file_id')))
ORDER BY number LIMIT ?
"""


class Deleted(NamedTuple):
    batches: list[str]
    files: list[str]
    """Their contents are still there."""


def delete_one(execute: Execute, file_id: str) -> Deleted:
    return Deleted([], _forget(execute, "files", [file_id]))


def delete_old(execute: Execute, now: float, kept_s: float | None) -> Deleted:
    """Some of it. What has no time of its own is kept for `kept_s`, if that is a number: a batch
    and its answers from its end, another file from its upload and while there is a batch over it.
    """
    files = _ids(execute(_EXPIRED, (now,)))
    if kept_s is None:
        return Deleted([], _forget(execute, "files", files))
    before = now - kept_s
    ended = execute(_ENDED, (before,)).fetchall()
    batches = _forget(execute, "batches", [row[0] for row in ended])
    answers = [name for row in ended for name in row[1:]]
    query = f"SELECT id FROM files WHERE expires_at IS NULL AND id IN ({_places(answers)})"
    files += _ids(execute(query, answers))
    files += _ids(execute(_UNUSED, (before,)))
    return Deleted(batches, _forget(execute, "files", files))


def delete_without_files(execute: Execute, most: int) -> int:
    """Deletes at most `most` of the oldest finished batches that have no answers, or none any more.
    Returns their number."""
    return execute(f"DELETE FROM batches WHERE number IN ({_WITHOUT_FILES})", (most,)).rowcount


def _ids(rows: Any) -> list[str]:
    return [row[0] for row in rows]


def _forget(execute: Execute, table: str, ids: list[str]) -> list[str]:
    execute(f"DELETE FROM {table} WHERE id IN ({_places(ids)})", ids)
    return ids


def _places(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))
