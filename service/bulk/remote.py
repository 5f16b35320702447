"""Files behind URLs, as fsspec reads them: s3://, gs://, hf://, https:// and others."""

from __future__ import annotations

import glob
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from engine.errors import InvalidInput
from service.errors import NotAvailable
from service.readers.extra import need
from service.readers.files import MAX_FILE_BYTES, check_size


@dataclass(frozen=True)
class RemoteFile:
    """A file of one of fsspec's file systems."""

    system: Any
    path: str
    num_bytes: int
    """0 if the other side does not say."""

    def open(self) -> BinaryIO:
        # fsspec's own readline takes no limit.
        return io.BufferedReader(_Raw(self.system, self.path))

    def read(self) -> bytes:
        check_size(self.num_bytes)
        with self.open() as file:
            content = file.read(MAX_FILE_BYTES + 1)
        check_size(len(content))
        return content


class _Raw(io.RawIOBase):
    """A remote file whose failures are OSErrors, as those of other files."""

    _file: Any = None  # as long as it is not open

    def __init__(self, system: Any, path: str) -> None:
        super().__init__()
        with _as_os_errors():
            self._file = system.open(path, "rb")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, buffer: Any) -> int:
        with _as_os_errors():
            return int(self._file.readinto(buffer))

    def close(self) -> None:
        if self._file is not None and not self.closed:
            self._file.close()
        super().close()


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Each of fsspec's file systems has errors of the library that it is made of."""
    try:
        yield
    except (OSError, ImportError):
        raise
    except Exception as error:
        raise OSError(str(error) or type(error).__name__) from error


def is_url(given: str) -> bool:
    return "://" in given


def path_of(name: str) -> str:
    """What ends in the suffix of a file's name: a URL may go on after it, with a signature."""
    return urlsplit(name).path if name.startswith(("http://", "https://")) else name


def find_remote(url: str) -> list[tuple[RemoteFile, str]]:
    """The files that a URL names, a folder's and a glob's too, in order, each with its own URL."""
    core = need("fsspec.core", "reading URLs")
    try:
        with _as_os_errors():
            system, path = core.url_to_fs(url)
            return [
                (
                    RemoteFile(system, name, int(system.size(name) or 0)),
                    system.unstrip_protocol(name),
                )
                for name in _names(system, path)
            ]
    except ImportError as error:  # of the package for this kind of URL
        raise NotAvailable(f"{url} cannot be read: {error}", code="missing_package") from None
    except OSError as error:
        raise InvalidInput(
            f"{url} cannot be read: {str(error) or type(error).__name__}",
            code="unreadable_source",
            param="from",
            actual=url,
        ) from None


def _names(system: Any, path: str) -> list[str]:
    if glob.has_magic(path):
        return sorted(system.glob(path))
    # Over HTTP, a folder is any page with links.
    is_web = "http" in system.protocol
    return sorted(system.find(path)) if not is_web and system.isdir(path) else [path]
