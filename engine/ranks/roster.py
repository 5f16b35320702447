"""Which other ranks are there, what group they form, and what they read.

The device's thread opens and closes readings, the keeper's thread adds and removes ranks. So every
change here is whole: a reading has the ranks that it was divided for, and its parts end with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.errors import LLNError, RankLost
from engine.ranks.channel import Channel, Read
from engine.ranks.group import Group
from engine.ranks.reading import Reading


@dataclass(eq=False)
class Member:
    """Another rank, connected."""

    channel: Channel
    rank: int = -1  # until it says so
    is_ready: bool = False
    is_forming: bool = False
    """Whether it has yet to say how it joined the last group."""

    in_group: bool = False
    heard_at: float = field(default_factory=time.monotonic)


class Forming(NamedTuple):
    """A group that is to be formed."""

    generation: int
    members: Sequence[Member]  # in the order of their ranks
    old: Group | None


class Roster:
    """The ranks but the first, as the first one knows them."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._lock = threading.Lock()  # never held while something is sent or waited for
        self._members: list[Member] = []
        self._group: Group | None = None
        self._reading: Reading | None = None
        self._parts: list[tuple[Member, Read]] = []  # to be sent
        self._must_form = self._is_closed = False
        self._generation = self._num_readings = 0

    @property
    def num_present(self) -> int:
        """The ranks that can read a document now, the first one included."""
        with self._lock:
            return 1 if self._group is None else self._group.num_ranks

    @property
    def bytes_sent(self) -> int:
        with self._lock:
            return 0 if self._group is None else self._group.bytes_sent

    @property
    def is_busy(self) -> bool:
        with self._lock:
            return self._reading is not None

    def members(self) -> list[Member]:
        with self._lock:
            return list(self._members)

    def close(self) -> Group | None:
        """Take no more ranks and no more groups. Returns the group that there was."""
        with self._lock:
            self._is_closed = True
            group, self._group = self._group, None
            return group

    # Readings

    def begin_reading(self) -> tuple[Reading, list[Member]] | None:
        """A reading, and the other ranks that take part; None if another is under way, or a group
        is to form first."""
        with self._lock:
            if self._group is None or self._reading is not None or self._must_form:
                return None
            self._num_readings += 1
            self._reading = Reading(self._num_readings, self._group)
            return self._reading, [member for member in self._members if member.in_group]

    def give_parts(self, reading: Reading, parts: list[tuple[Member, Read]]) -> None:
        with self._lock:
            if self._reading is reading:  # no rank was lost meanwhile
                self._parts = parts

    def take_parts(self) -> list[tuple[Member, Read]]:
        """The parts that are to be sent now."""
        with self._lock:
            parts, self._parts = self._parts, []
            return parts

    def end_reading(self, reading: Reading, *, must_form: bool) -> None:
        with self._lock:
            if self._reading is reading:
                self._end_reading()
                self._must_form |= must_form

    def fail_reading(self, number: int, error: LLNError) -> None:
        """The reading of this number, if it is still under way, ends with this error."""
        with self._lock:
            if self._reading is not None and self._reading.number == number:
                self._reading.failure = error
                self._must_form = True

    def _end_reading(self) -> None:
        self._reading, self._parts = None, []

    # Ranks

    def add(self, channel: Channel) -> None:
        with self._lock:
            if not self._is_closed:
                self._members.append(Member(channel))
                return
        channel.close()

    def set_ready(self, member: Member) -> None:
        with self._lock:
            member.is_ready = self._must_form = True

    def remove(self, member: Member, why: str) -> bool:
        """Whether the rank was still there. What it took part in fails."""
        with self._lock:
            if member not in self._members:
                return False
            self._members.remove(member)
            self._must_form |= member.is_ready
            reading = self._reading
            if member.in_group and reading is not None and reading.failure is None:
                reading.failure = self._lost(member.rank, why)
        member.channel.close()
        return True

    def _lost(self, rank: int, why: str) -> RankLost:
        num_left = len(self._members) + 1
        return RankLost(
            f"Rank {rank} of {self._num_ranks} was lost while it read a part of this document: "
            f"{why}. {num_left} are left.",
            limit=self._num_ranks,
            actual=num_left,
            retry_after_s=1.0,
        )

    # Groups

    def answer_form(self, member: Member, *, is_joined: bool) -> None:
        """The rank says whether it has joined the last group."""
        with self._lock:
            member.is_forming = False
            self._must_form |= not is_joined

    def begin_forming(self, *, least_ranks: int) -> Forming | None:
        """The group that is to be formed now; None if none is, if something is read that can still
        end well, or if a rank has yet to answer for the last group."""
        with self._lock:
            ready = [member for member in self._members if member.is_ready]
            is_reading = self._reading is not None and self._reading.failure is None
            if not self._must_form or is_reading or len(ready) + 1 < least_ranks:
                return None
            if any(member.is_forming for member in ready):
                return None  # one that never answers is lost before the next attempt
            self._end_reading()
            old, self._group = self._group, None
            self._generation += 1
            self._members.sort(key=lambda member: member.rank)
            members = [member for member in self._members if member.is_ready]
            for member in members:
                member.in_group = False
            return Forming(self._generation, members, old)

    def end_forming(self, forming: Forming, group: Group | None) -> bool:
        """The group has formed, or has not and must be formed again: False."""
        with self._lock:
            if self._is_closed:
                return False
            self._group = group
            self._must_form = group is None and bool(forming.members)
            for member in forming.members:
                member.in_group = group is not None
            return not self._must_form
