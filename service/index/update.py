"""Brings an index up to date with its folder: reads what changed, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from engine.async_engine import AsyncEngine
from engine.errors import InsufficientMemory, InvalidInput
from engine.types import Context, DocumentEmbedding, HeadingPlan
from service.in_order import in_order
from service.index.scan import Changes, Found, changes_in, digest
from service.index.schema import Recipe
from service.index.store import FileState, IndexedFile, IndexStore
from service.readers.extracted import Extracted, NotText, Unreadable
from service.readers.files import read_bytes, read_content

CONTEXT: Context = "balanced"
CHUNK_TOKENS = 256

_MAX_CHARACTERS_AT_ONCE = 400_000
"""Of the files that are read side by side, so that short ones share batches."""

_FILE_WEIGHT = 1_000
"""What a file weighs besides its characters."""


@dataclass(kw_only=True)
class Summary:
    """What an update did, in files."""

    read: int = 0
    moved: int = 0
    removed: int = 0
    unchanged: int = 0
    tokens: int = 0
    not_text: int = 0
    """Files that hold no text, such as pictures."""
    problems: dict[str, str] = field(default_factory=dict)
    """Other files that could not be read, with the reason."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far an update is, by the bytes of the files that may have changed."""

    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class _Text:
    """A file whose text is to be embedded."""

    found: Found
    sha256: str
    extracted: Extracted


@dataclass(frozen=True, kw_only=True)
class _Problem:
    """A file without a text that can be embedded."""

    found: Found
    sha256: str
    reason: str
    is_text: bool = True


@dataclass(frozen=True, kw_only=True)
class _Same:
    """A file with the content that it had, or that a file had which is gone."""

    found: Found
    was: str


_Draft: TypeAlias = _Text | _Problem | _Same
_Embedded: TypeAlias = DocumentEmbedding | _Problem | None


def recipe_for(folder: Path, engine: AsyncEngine, model: str) -> Recipe:
    info = engine.resolve(model)
    return Recipe(
        folder=str(folder),
        model=info.name,
        revision=info.revision,
        calibration=info.calibration,
        dim=info.dim,
        context=CONTEXT,
        chunk_tokens=CHUNK_TOKENS,
    )


async def update(
    store: IndexStore,
    folder: Path,
    engine: AsyncEngine,
    report: Callable[[Progress], None] = lambda _: None,
) -> Summary:
    """Reads files that are new or changed, follows those that moved, and takes out the others.

    The writer's lock must be held. Each file that is done stays done if the process is killed.
    """
    known = store.file_states()
    changes = changes_in(folder, known)
    summary = Summary(unchanged=changes.unchanged)
    total_bytes = sum(found.size for found in changes.suspects)
    gone = {known[path].sha256: path for path in changes.removed}
    files = bytes_done = 0

    async def embed(draft: _Draft) -> _Embedded:
        return await _embed(draft, engine) if isinstance(draft, _Text) else None

    async for draft, embedded in in_order(
        _drafts(changes, known, gone), embed, weigh=_weigh, max_weight=_MAX_CHARACTERS_AT_ONCE
    ):
        _keep(store, draft, embedded, summary)
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
    removed = [path for path in changes.removed if path in gone.values()]
    store.remove(removed)
    summary.removed = len(removed)
    return summary


def _drafts(
    changes: Changes, known: Mapping[str, FileState], gone: dict[str, str]
) -> Iterator[_Draft]:
    """Reads the files that may have changed, and finds those that have. Runs in a thread.

    `gone` has the files that are no longer there, by their content; those that moved are taken out.
    """
    for found in changes.suspects:
        try:
            content = read_bytes(found.file)
        except FileNotFoundError:  # removed since the folder was listed
            continue
        except OSError as error:
            yield _Problem(found=found, sha256="", reason=error.strerror or str(error))
            continue
        except Unreadable as error:
            yield _Problem(found=found, sha256="", reason=error.message)
            continue
        sha256 = digest(content)
        before = known.get(found.path)
        if before is not None and before.sha256 == sha256:
            yield _Same(found=found, was=found.path)
        elif before is None and sha256 in gone:
            yield _Same(found=found, was=gone.pop(sha256))
        else:
            yield _read(found, sha256, content)


def _read(found: Found, sha256: str, content: bytes) -> _Draft:
    try:
        extracted = read_content(found.path, content)
    except Unreadable as error:
        is_text = not isinstance(error, NotText)
        return _Problem(found=found, sha256=sha256, reason=error.message, is_text=is_text)
    if not extracted.text.strip():
        return _Problem(found=found, sha256=sha256, reason="it has no text")
    return _Text(found=found, sha256=sha256, extracted=extracted)


async def _embed(draft: _Text, engine: AsyncEngine) -> _Embedded:
    plan = HeadingPlan(max_tokens=CHUNK_TOKENS, context=CONTEXT)
    extracted = draft.extracted
    try:
        return await engine.embed_document(
            extracted.text, chunks=plan, title=extracted.title or None
        )
    except (InvalidInput, InsufficientMemory) as error:
        return _Problem(found=draft.found, sha256=draft.sha256, reason=error.message)


def _keep(store: IndexStore, draft: _Draft, embedded: _Embedded, summary: Summary) -> None:
    """Stores what became of a file, and counts it."""
    found = draft.found
    if isinstance(draft, _Same):
        store.move(draft.was, found.path, size=found.size, mtime_ns=found.mtime_ns)
        if draft.was == found.path:
            summary.unchanged += 1
        else:
            summary.moved += 1
        return
    if isinstance(embedded, _Problem):
        draft = embedded
    if isinstance(draft, _Problem):
        store.put(_row(found, draft.sha256, problem=draft.reason))
        if draft.is_text:
            summary.problems[found.path] = draft.reason
        else:
            summary.not_text += 1
        return
    assert isinstance(embedded, DocumentEmbedding), "a text is embedded, or a problem"
    store.put(_row(found, draft.sha256, extracted=draft.extracted, embedded=embedded))
    summary.read += 1
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
        problem=problem,
    )


def _weigh(draft: _Draft) -> int:
    return _FILE_WEIGHT + (len(draft.extracted.text) if isinstance(draft, _Text) else 0)
