"""What an update finds in the files that may have changed: texts, problems, or what is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from engine.errors import LLNError
from service.index.scan import Changes, Found, digest
from service.index.store import FileState
from service.readers.extracted import Extracted, NotText, Unreadable
from service.readers.files import Reader, read_bytes, read_content, reader_of, why_unread


@dataclass(frozen=True, kw_only=True)
class Text:
    """A file whose text is to be embedded."""

    found: Found
    sha256: str
    extracted: Extracted
    before: FileState | None


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A file without a text that can be embedded."""

    found: Found
    sha256: str
    reason: str
    is_text: bool = True
    is_stored: bool = True
    """Whether it takes the place of what the index has of the file."""


@dataclass(frozen=True, kw_only=True)
class Same:
    """A file with the content that it had, or that a file had which is gone."""

    found: Found
    was: str
    is_noted: bool = False
    """Whether the index has its size and time."""


Draft: TypeAlias = Text | Problem | Same


class Gone:
    """The files that are no longer there, by what they held and how that is read."""

    def __init__(self, states: Iterable[FileState]) -> None:
        self._paths: dict[tuple[str, Reader], list[str]] = {}
        for state in states:
            key = (state.sha256, reader_of(state.path))
            self._paths.setdefault(key, []).append(state.path)

    def take(self, path: str, sha256: str) -> str | None:
        """The file that has moved to this path, which is gone no longer; None if there is none."""
        paths = self._paths.get((sha256, reader_of(path)))
        return paths.pop() if paths else None

    @property
    def paths(self) -> list[str]:
        """Those that have not moved."""
        return [path for paths in self._paths.values() for path in paths]


def drafts_of(changes: Changes, known: Mapping[str, FileState], gone: Gone) -> Iterator[Draft]:
    """Reads the files that may have changed, and finds those that have. Runs in a thread."""
    for found in changes.suspects:
        before = known.get(found.path)
        try:
            content = read_bytes(found.file)
        except FileNotFoundError:  # removed since the folder was listed
            continue
        except (OSError, Unreadable) as error:
            yield unread(found, error, before)
            continue
        sha256 = digest(content)
        if before is not None and before.sha256 == sha256:
            yield Same(found=found, was=found.path)
        elif before is None and (was := gone.take(found.path, sha256)) is not None:
            yield Same(found=found, was=was)
        else:
            yield _read(found, sha256, content, before)


def unread(found: Found, error: OSError | LLNError, before: FileState | None) -> Problem | Same:
    """A file that cannot be read now. It is tried again by each update, and told once. What the
    index has of it stays if nobody can tell whether it has changed."""
    reason = error.message if isinstance(error, LLNError) else why_unread(error)
    if before is not None and (before.sha256, before.problem) == ("", reason):
        is_noted = (before.size, before.mtime_ns) == (found.size, found.mtime_ns)
        return Same(found=found, was=found.path, is_noted=is_noted)
    is_known = before is not None and before.sha256 != ""
    return Problem(found=found, sha256="", reason=reason, is_stored=found.is_seen or not is_known)


def _read(found: Found, sha256: str, content: bytes, before: FileState | None) -> Draft:
    try:
        extracted = read_content(found.path, content)
    except Unreadable as error:
        is_text = not isinstance(error, NotText)
        return Problem(found=found, sha256=sha256, reason=error.message, is_text=is_text)
    if not extracted.text.strip():
        return Problem(found=found, sha256=sha256, reason="it has no text", is_text=False)
    return Text(found=found, sha256=sha256, extracted=extracted, before=before)
