"""How much of its storage the Batch API uses: what its files hold, and what uploads have taken."""

from __future__ import annotations

from threading import Lock

from service.errors import StorageFailure


class Usage:
    """One count for all threads, so that nobody has to look through the folder."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.kept_bytes = 0
        """Of files, answers that are still being written among them."""
        self.taken_bytes = 0
        """By uploads that are not files yet."""

    def check(self, num_bytes: int, limit_bytes: int) -> None:
        """Raises StorageFailure if all together would hold more than the limit."""
        with self._lock:
            self._check(num_bytes, limit_bytes)

    def take(self, num_bytes: int, limit_bytes: int) -> None:
        """Raises StorageFailure if all together would hold more than the limit."""
        with self._lock:
            self._check(num_bytes, limit_bytes)
            self.taken_bytes += num_bytes

    def _check(self, num_bytes: int, limit_bytes: int) -> None:
        wanted = self.kept_bytes + self.taken_bytes + num_bytes
        if wanted > limit_bytes:
            raise StorageFailure(
                f"files hold {self.kept_bytes} bytes and others that arrive "
                f"{self.taken_bytes}, the limit is {limit_bytes}; delete some",
                code="storage_full",
                limit=limit_bytes,
                actual=wanted,
            )

    def give_back(self, num_bytes: int) -> None:
        with self._lock:
            self.taken_bytes -= num_bytes

    def keep(self, num_bytes: int, *, taken: int) -> None:
        """Counts an upload as a file, and no longer as what it had taken."""
        with self._lock:
            self.taken_bytes -= taken
            self.kept_bytes += num_bytes

    def change(self, num_bytes: int) -> None:
        """Counts what files have grown by, or with a minus what they have lost."""
        with self._lock:
            self.kept_bytes += num_bytes

    def recount(self, kept_bytes: int) -> None:
        """Takes what was found in the folder for what files hold."""
        with self._lock:
            self.kept_bytes = kept_bytes
