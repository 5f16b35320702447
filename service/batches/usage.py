"""How much of its storage the Batch API uses: what its files hold, and what uploads have taken."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

from service.errors import StorageFull


@dataclass(frozen=True)
class Amount:
    """Files, and the bytes in them."""

    num_bytes: int = 0
    num_files: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.num_bytes + other.num_bytes, self.num_files + other.num_files)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.num_bytes - other.num_bytes, self.num_files - other.num_files)


NOTHING = Amount()


class Usage:
    """One count for all threads, so that nobody has to look through the folder."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.kept = NOTHING
        """Files, answers that are still being written among them."""
        self.taken = NOTHING
        """What uploads take that are not files yet."""

    def check(self, more: Amount, limit: Amount) -> None:
        """Raises StorageFull if all together would be more than the limit."""
        with self._lock:
            self._check(more, limit)

    def take(self, more: Amount, limit: Amount) -> None:
        """Raises StorageFull if all together would be more than the limit."""
        with self._lock:
            self._check(more, limit)
            self.taken += more

    def _check(self, more: Amount, limit: Amount) -> None:
        wanted = self.kept + self.taken + more
        if more.num_files and wanted.num_files > limit.num_files:
            raise StorageFull(
                f"there are {self.kept.num_files} files and {self.taken.num_files} that arrive, "
                f"the limit is {limit.num_files}; delete some",
                code="too_many_files",
                limit=limit.num_files,
                actual=wanted.num_files,
            )
        if more.num_bytes and wanted.num_bytes > limit.num_bytes:
            raise StorageFull(
                f"files hold {self.kept.num_bytes} bytes and others that arrive "
                f"{self.taken.num_bytes}, the limit is {limit.num_bytes}; delete some",
                limit=limit.num_bytes,
                actual=wanted.num_bytes,
            )

    def give_back(self, taken: Amount) -> None:
        with self._lock:
            self.taken -= taken

    def keep(self, file: Amount, *, taken: Amount) -> None:
        """Counts an upload as a file, and no longer as what it had taken."""
        with self._lock:
            self.taken -= taken
            self.kept += file

    def change(self, before: Amount, after: Amount) -> None:
        """Counts what has become of a file."""
        with self._lock:
            self.kept += after - before

    def recount(self, kept: Amount) -> None:
        """Takes what was found in the folder for what there is."""
        with self._lock:
            self.kept = kept
