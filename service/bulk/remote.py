"""Files behind URLs, as fsspec reads them: s3://, gs://, hf://, https:// and others."""

from __future__ import annotations

import glob
import io
from dataclasses import dataclass
from typing import Any, BinaryIO

from engine.errors import InvalidInput
from service.errors import NotAvailable
from service.readers.extra import need
from service.readers.files import check_size


@dataclass(frozen=True)
class RemoteFile:
    """A file of one of fsspec's file systems."""

    system: Any
    path: str
    num_bytes: int

    def open(self) -> BinaryIO:
        # fsspec's own readline takes no limit.
        return io.BufferedReader(self.system.open(self.path, "rb"))

    def read(self) -> bytes:
        check_size(self.num_bytes)
        with self.open() as file:
            return file.read()


def is_url(given: str) -> bool:
    return "://" in given


def find_remote(url: str) -> list[tuple[RemoteFile, str]]:
    """The files that a URL names, a folder's and a glob's too, in order, each with its own URL."""
    core = need("fsspec.core", "reading URLs")
    try:
        system, path = core.url_to_fs(url)
        return [
            (RemoteFile(system, name, int(system.size(name) or 0)), system.unstrip_protocol(name))
            for name in _names(system, path)
        ]
    except ImportError as error:  # of the package for this kind of URL
        raise NotAvailable(f"{url} cannot be read: {error}", code="missing_package") from None
    except (OSError, ValueError) as error:
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
