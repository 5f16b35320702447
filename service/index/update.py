"""Brings an index up to date with its folder: reads what changed, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

from engine.async_engine import AsyncEngine
from engine.errors import InsufficientMemory, InvalidInput, LLNError
from engine.living_types import LivingEmbedding
from engine.types import DocumentEmbedding
from service.in_order import in_order
from service.index.drafts import Draft, Gone, Problem, Same, Text, drafts_of, unread
from service.index.read_file import (
    CHUNK_TOKENS,
    FileReader,
    previous_of,
    record_of,
)
from service.index.rows import IndexedFile
from service.index.scan import Found, changes_in
from service.index.schema import Recipe
from service.index.store import IndexStore
from service.patience import patiently
from service.readers.extracted import Extracted

_MAX_CHARACTERS_AT_ONCE = 400_000
"""Characters of the files that are read side by side, so that short ones share batches."""

_FILE_WEIGHT = 1_000
"""What a file weighs besides its characters."""


@dataclass(kw_only=True)
class Summary:
    """What an update did: to files, and within those that were read."""

    read: int = 0
    moved: int = 0
    removed: int = 0
    unchanged: int = 0
    tokens: int = 0
    segments: int = 0
    """Segments of long files with records."""
    segments_read: int = 0
    vectors_written: int = 0
    vectors_kept: int = 0
    """Vectors of chunks that are as they were, in files that were read."""
    not_text: int = 0
    """Files that hold no text, such as pictures."""
    problems: dict[str, str] = field(default_factory=dict)
    """Other files that could not be read, with the reason."""

    @property
    def changed_anything(self) -> bool:
        return bool(self.read or self.moved or self.removed or self.not_text or self.problems)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far an update is, by the bytes of the files that may have changed."""

    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int
    tokens: int


_Embedded: TypeAlias = DocumentEmbedding | Problem | Same | None


def recipe_for(folder: Path, engine: AsyncEngine, model: str, *, records: bool = False) -> Recipe:
    info = engine.resolve(model)
    if records and "softmax" in info.attention:
        raise InvalidInput(
            f"{info.name} has softmax attention, in which each token depends on all others; "
            "records need a model with LLN+Diag",
            code="no_records",
            param="model",
            actual=info.name,
        )
    return Recipe(
        folder=str(folder),
        model=info.name,
        revision=info.revision,
        calibration=info.calibration,
        dim=info.dim,
        context=info.chunk_context,
        chunk_tokens=CHUNK_TOKENS,
        records=records,
        dtype=info.dtype,
    )


class IndexWriter:
    """Brings an index up to date with its folder. The writer's lock must be held."""

    def __init__(
        self,
        store: IndexStore,
        folder: Path,
        engine: AsyncEngine,
        max_staleness: float | None = None,
    ) -> None:
        """In an index with records, `max_staleness` is how stale a passage that is not read again
        may be."""
        self.folder = folder
        self.place = store.folder
        self._store = store
        self._reader = FileReader(store, engine, max_staleness)
        self._too_large: dict[str, str] = {}
        """Digests of files that do not fit in this engine's memory, by path."""
        self._reported: dict[str, str] = {}
        """The problems of the last update. One that persists is not reported again."""

    async def update(self, report: Callable[[Progress], None] = lambda _: None) -> Summary:
        """Reads files that are new or changed, follows those that moved, and takes out the others.

        Each file that is done stays done if the process is killed.
        """
        if not self.folder.is_dir():  # an empty index would be the answer
            raise InvalidInput(f"{self.folder} is no longer there", param="folder")
        self._store.check_in_place()
        known = self._store.file_states()
        changes = changes_in(self.folder, known, self.place)
        summary = Summary(unchanged=changes.unchanged)
        total_bytes = sum(found.size for found in changes.suspects)
        gone = Gone(known[path] for path in changes.removed)
        files = bytes_done = 0
        async for draft, embedded in in_order(
            drafts_of(changes, known, gone),
            self._embed,
            weigh=_weigh,
            max_weight=_MAX_CHARACTERS_AT_ONCE,
        ):
            _keep(self._store, draft, embedded, summary)
            files += 1
            bytes_done += draft.found.size
            report(
                Progress(
                    files_done=files,
                    files_total=len(changes.suspects),
                    bytes_done=bytes_done,
                    bytes_total=total_bytes,
                    tokens=summary.tokens,
                )
            )
        removed = gone.paths
        self._store.remove(removed)
        summary.removed = len(removed)
        before, self._reported = self._reported, summary.problems
        summary.problems = dict(self._reported.items() - before.items())
        return summary

    async def _embed(self, draft: Draft) -> _Embedded:
        if not isinstance(draft, Text):
            return None
        if self._is_known_too_large(draft):
            return Same(found=draft.found, was=draft.found.path, is_noted=True)
        try:
            return await patiently(partial(self._reader.read, draft.extracted, draft.before))
        except InvalidInput as error:
            return Problem(found=draft.found, sha256=draft.sha256, reason=error.message)
        except InsufficientMemory as error:  # the next engine may have more
            self._too_large[draft.found.path] = draft.sha256
            return unread(draft.found, error, draft.before)
        except LLNError as error:  # perhaps not the file's fault, so the update ends
            message = f"{draft.found.path}: {error.message}"
            raise error.about(error.param, message=message) from error

    def _is_known_too_large(self, text: Text) -> bool:
        is_unread = text.before is not None and not text.before.sha256
        return is_unread and self._too_large.get(text.found.path) == text.sha256


def _keep(store: IndexStore, draft: Draft, embedded: _Embedded, summary: Summary) -> None:
    """Stores what became of a file, and counts it."""
    found = draft.found
    if isinstance(embedded, Problem | Same):
        draft = embedded
    if isinstance(draft, Same):
        if not draft.is_noted:
            store.move(draft.was, found.path, size=found.size, mtime_ns=found.mtime_ns)
        if draft.was == found.path:
            summary.unchanged += 1
        else:
            summary.moved += 1
        return
    if isinstance(draft, Problem):
        if draft.is_stored:
            store.put(_row(found, draft.sha256, problem=draft.reason))
        if draft.is_text:
            summary.problems[found.path] = draft.reason
        else:
            summary.not_text += 1
        return
    assert isinstance(embedded, DocumentEmbedding), "a text is embedded, or a problem"
    row = _row(found, draft.sha256, extracted=draft.extracted, embedded=embedded)
    replaced = store.replace(row, previous_of(row))
    summary.read += 1
    summary.vectors_written += replaced.written
    summary.vectors_kept += replaced.kept
    if isinstance(embedded, LivingEmbedding):
        summary.tokens += embedded.tokens_read
        summary.segments += embedded.segments
        summary.segments_read += embedded.segments_read
    else:
        summary.tokens += embedded.accounting.tokens_embedded


_NOTHING = Extracted(text="")


def _row(
    found: Found,
    sha256: str,
    *,
    extracted: Extracted = _NOTHING,
    embedded: DocumentEmbedding | None = None,
    problem: str = "",
) -> IndexedFile:
    return IndexedFile(
        path=found.path,
        size=found.size,
        mtime_ns=found.mtime_ns,
        sha256=sha256,
        title=extracted.title,
        text=extracted.text,
        page_starts=extracted.page_starts,
        tokens=embedded.tokens if embedded else 0,
        chunks=embedded.chunks if embedded else (),
        record=record_of(embedded) if embedded else None,
        problem=problem,
    )


def _weigh(draft: Draft) -> int:
    return _FILE_WEIGHT + (len(draft.extracted.text) if isinstance(draft, Text) else 0)
