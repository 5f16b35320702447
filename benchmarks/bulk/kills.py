"""What a kill of a bulk job repeats: work that was done and not kept, from the job's log.

The log has a line when rows are sent to a worker and when a piece of them is kept, each with its
time. What a worker has done since then is lost with it. The time of that work, over the time that
a part takes a worker, says how much of a part it is.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_LINE = re.compile(r"([\d.]+) part (\d+): rows (\d+) to (\d+) are (sent|kept)")


@dataclass
class SentRows:
    """Rows that a worker was given, and how far their pieces are kept."""

    part: int
    first: int
    end: int
    at_s: list[float]
    """When they were sent, and when each piece was kept."""

    kept_to: int = field(init=False)

    def __post_init__(self) -> None:
        self.kept_to = self.first

    @property
    def is_done(self) -> bool:
        return self.kept_to == self.end

    def holds(self, part: int, row: int) -> bool:
        return self.part == part and self.first <= row < self.end


def read_log(path: Path) -> list[SentRows]:
    """All that was sent, with the pieces that were kept of it."""
    found: list[SentRows] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        matched = _LINE.match(line)
        if matched is None:
            continue
        at_s, part, first, end = float(matched[1]), *map(int, matched.group(2, 3, 4))
        if matched[5] == "sent":
            found.append(SentRows(part, first, end, [at_s]))
            continue
        sent = next(one for one in reversed(found) if one.holds(part, first))
        sent.kept_to = end
        sent.at_s.append(at_s)
    return found


def lost_s(sent: Sequence[SentRows], killed_at_s: Sequence[float]) -> list[float]:
    """Seconds of workers' work that each kill cost: since the last piece that was kept of rows that
    a worker did not end."""
    found = [0.0] * len(killed_at_s)
    for one in sent:
        if not one.is_done:
            kill = min(bisect_left(killed_at_s, one.at_s[-1]), len(found) - 1)
            found[kill] += max(0.0, killed_at_s[kill] - one.at_s[-1])
    return found


def part_s(sent: Sequence[SentRows], num_rows: int) -> float:
    """What a part takes a worker, on average, in a job of so many rows."""
    took = sum(one.at_s[-1] - one.at_s[0] for one in sent)
    rows = sum(one.kept_to - one.first for one in sent)
    num_parts = len({one.part for one in sent})
    return took / rows * num_rows / num_parts
