"""What becomes of readings and groups as ranks come and go. Nothing is sent here."""

from __future__ import annotations

import socket
from multiprocessing.connection import Connection
from typing import cast

from engine.errors import DeviceFailure
from engine.ranks.channel import Channel, Read
from engine.ranks.group import Group
from engine.ranks.roster import Member, Roster


class NoGroup:
    """Stands in for a group: a real one needs other processes, and nothing is exchanged."""

    bytes_sent = 0

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks


def joined(roster: Roster, rank: int) -> Member:
    known = roster.members()
    end, other = socket.socketpair()
    other.close()
    roster.add(Channel(Connection(end.detach())))
    (member,) = (one for one in roster.members() if one not in known)
    member.rank = rank
    roster.set_ready(member)
    return member


def form(roster: Roster) -> None:
    forming = roster.begin_forming(least_ranks=0)
    assert forming is not None
    group = NoGroup(len(forming.members) + 1)
    assert roster.end_forming(forming, cast(Group, group))


def part(number: int) -> Read:
    return Read(number, "default", None, False)  # type: ignore[arg-type]


def test_a_rank_that_takes_no_part_is_lost_without_harm() -> None:
    roster = Roster(3)
    reader = joined(roster, 1)
    form(roster)
    begun = roster.begin_reading()
    assert begun is not None
    reading, readers = begun
    newcomer = joined(roster, 2)
    assert readers == [reader]
    assert roster.begin_forming(least_ranks=0) is None, "not while something is read"
    assert roster.remove(newcomer, "it ended")
    assert not roster.remove(newcomer, "it ended"), "once"
    reading.check()
    roster.remove(reader, "it ended")
    assert reading.failure is not None
    assert (reading.failure.limit, reading.failure.actual) == (3, 1)


def test_parts_end_with_their_text() -> None:
    roster = Roster(2)
    reader = joined(roster, 1)
    form(roster)
    begun = roster.begin_reading()
    assert begun is not None
    reading, _ = begun
    roster.give_parts(reading, [(reader, part(reading.number))])
    roster.end_reading(reading, must_form=True)
    assert roster.take_parts() == []
    assert roster.begin_reading() is None, "a group is to form first"
    roster.give_parts(reading, [(reader, part(reading.number))])
    assert roster.take_parts() == [], "the reading has ended"
    form(roster)
    assert roster.begin_reading() is not None


def test_a_failure_is_that_of_its_own_reading() -> None:
    roster = Roster(2)
    joined(roster, 1)
    form(roster)
    begun = roster.begin_reading()
    assert begun is not None
    reading, _ = begun
    roster.fail_reading(reading.number - 1, DeviceFailure("an old one"))
    assert reading.failure is None
    roster.fail_reading(reading.number, DeviceFailure("its own"))
    assert reading.failure is not None
    form(roster)  # which ends it
    assert not roster.is_busy


def test_no_group_forms_while_a_rank_has_yet_to_answer_for_the_last() -> None:
    roster = Roster(2)
    member = joined(roster, 1)
    forming = roster.begin_forming(least_ranks=0)
    assert forming is not None
    member.is_forming = True
    assert not roster.end_forming(forming, None)
    assert roster.begin_forming(least_ranks=0) is None
    roster.answer_form(member, is_joined=False)
    assert roster.begin_forming(least_ranks=0) is not None


def test_the_first_group_is_of_all_and_none_follows_a_stop() -> None:
    roster = Roster(3)
    joined(roster, 1)
    assert roster.begin_forming(least_ranks=3) is None
    joined(roster, 2)
    forming = roster.begin_forming(least_ranks=3)
    assert forming is not None
    assert [member.rank for member in forming.members] == [1, 2]
    roster.close()
    assert not roster.end_forming(forming, cast(Group, NoGroup(3)))
    assert roster.num_present == 1
