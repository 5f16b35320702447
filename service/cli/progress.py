"""Progress of a long job on standard error."""

from __future__ import annotations

import sys
from time import monotonic

from service.cli.common import tell

_EVERY_S = 0.2
_EVERY_S_IN_A_LOG = 10.0


class ProgressLine:
    """Shows how far a job is, how fast it goes and how long it will take: one line that is written
    over on a terminal, and a line now and then elsewhere."""

    def __init__(self) -> None:
        self._began_at = monotonic()
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._every_s = _EVERY_S if self._is_terminal else _EVERY_S_IN_A_LOG
        self._shown_at = self._began_at if not self._is_terminal else 0.0
        self._width = 0

    def show(self, what: str, *, done: int, total: int | None, tokens: int) -> None:
        """`done` and `total` are in any one unit; without a total there is no time left to tell."""
        now = monotonic()
        if now - self._shown_at < self._every_s:
            return
        self._shown_at = now
        took_s = max(now - self._began_at, 1e-9)
        line = f"{what}, {tokens / took_s:,.0f} tokens/s"
        if total and done:
            line += f", {_duration(took_s * (total - done) / done)} left"
        if self._is_terminal:
            tell("\r" + line.ljust(self._width), end="")
            self._width = len(line)
        else:
            tell(line)

    def end(self) -> None:
        """Leaves the line, if one was written."""
        if self._is_terminal and self._width:
            tell("\r" + " " * self._width + "\r", end="")


def _duration(seconds: float) -> str:
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole} s" if minutes else f"{whole} s"
