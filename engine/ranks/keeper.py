"""The thread that keeps the other ranks.

It welcomes those that connect, hands out parts, notices who ends or says nothing for too long, and
forms groups of those that are there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import Any

from torch.distributed import DistError, Store  # type: ignore[attr-defined]

from engine.config import EngineConfig
from engine.errors import EngineUnavailable, LLNError
from engine.model.embedding_model import EmbeddingModel
from engine.ranks import group as groups
from engine.ranks.admission import problem_of_models, problem_of_rank
from engine.ranks.channel import (
    Beat,
    Channel,
    Failed,
    Form,
    Formed,
    Hello,
    Message,
    Ready,
    Welcome,
)
from engine.ranks.group import Group
from engine.ranks.launcher import RankLauncher
from engine.ranks.place import RankPlace
from engine.ranks.roster import Forming, Member, Roster

TICK_S = 0.25
"""How often the thread looks for ranks that say nothing and for processes that ended."""

logger = logging.getLogger(__name__)


class Keeper:
    """Keeps a roster up to date with what the other ranks say and do."""

    def __init__(
        self,
        roster: Roster,
        place: RankPlace,
        *,
        models: Mapping[str, EmbeddingModel],
        config: EngineConfig,
        launcher: RankLauncher,
        on_change: Callable[[int], None],
        on_lost: Callable[[], None],
    ) -> None:
        """`on_change` and `on_lost` are called from the keeper's thread."""
        self._roster, self._place, self._launcher = roster, place, launcher
        self._models, self._config = models, config
        self._on_change, self._on_lost = on_change, on_lost
        self.problem: LLNError | None = None
        """What kept a rank from joining the first group."""

        self.formed = threading.Event()
        """Set when all ranks have joined the first group."""

        self.ended = threading.Event()
        self._awake, self._wake = Pipe(duplex=False)

    def start(self, store: Store) -> None:
        self._store = store
        threading.Thread(target=self._keep, name="lln-ranks-keeper", daemon=True).start()

    def stop(self) -> None:
        self.ended.set()
        self.awaken()

    def awaken(self) -> None:
        """Let the thread look at once at what has changed."""
        with suppress(OSError):
            self._wake.send_bytes(b"")

    def let_in(self, channel: Channel) -> None:
        """A rank has connected. Any thread may call this."""
        self._roster.add(channel)
        self.awaken()

    def _keep(self) -> None:
        while not self.ended.is_set():
            try:
                self._turn()
            except Exception as error:
                logger.exception("Keeping the ranks failed", exc_info=error)
                time.sleep(TICK_S)

    def _turn(self) -> None:
        waiting: dict[Any, Member] = {
            member.channel.connection: member for member in self._roster.members()
        }
        for connection in wait([*waiting, self._awake], TICK_S):
            if connection is self._awake:
                self._awake.recv_bytes()
            else:
                self._hear(waiting[connection])
        self._send_parts()
        self._drop_the_silent()
        self._restart_ended()
        self._form_if_needed()

    def _hear(self, member: Member) -> None:
        try:
            message = member.channel.receive(0)
        except (EOFError, OSError):
            self._lose(member, "its process ended or its connection broke")
            return
        except Exception as error:  # what a rank of another version may send
            self._lose(member, f"it sent something that is not a message: {error!r}")
            return
        if message is None:
            return
        member.heard_at = time.monotonic()
        try:
            self._answer(member, message)
        except OSError:
            self._lose(member, "it takes no messages")

    def _answer(self, member: Member, message: Message) -> None:
        match message:
            case Hello():
                self._welcome(member, message)
            case Ready(infos):
                if (problem := problem_of_models(member.rank, infos, self._models)) is not None:
                    self._refuse(member, problem)
                    return
                self._roster.set_ready(member)
            case Failed(error, 0):
                self._fail_start(error)
                self._roster.remove(member, error.message)
            case Failed(error, number):
                self._roster.fail_reading(number, error)
            case Formed(_, is_joined):
                self._roster.answer_form(member, is_joined=is_joined)
            case Beat():
                pass

    def _welcome(self, member: Member, hello: Hello) -> None:
        taken = {other.rank for other in self._roster.members()}
        problem = problem_of_rank(hello, self._place.num_ranks, taken)
        if problem is not None:
            self._refuse(member, problem)
            return
        member.rank = hello.rank
        member.channel.send(Welcome(tuple(self._models), self._config))

    def _refuse(self, member: Member, problem: LLNError) -> None:
        with suppress(OSError):
            member.channel.send(Failed(problem))
        self._fail_start(problem)
        self._roster.remove(member, problem.message)

    def _fail_start(self, problem: LLNError) -> None:
        if not self.formed.is_set():
            self.problem = problem
        logger.warning("A rank cannot join: %s", problem.message)

    def _lose(self, member: Member, why: str) -> None:
        if not self._roster.remove(member, why):
            return
        logger.warning("Rank %d is lost: %s", member.rank, why)
        if member.is_ready:
            self._on_lost()

    def _send_parts(self) -> None:
        for member, part in self._roster.take_parts():
            try:
                member.channel.send(part)
            except OSError:
                self._lose(member, "it takes no messages")

    def _drop_the_silent(self) -> None:
        now = time.monotonic()
        for member in self._roster.members():
            limit_s = self._longest_silence_s(member)
            if not member.is_ready or now - member.heard_at <= limit_s:
                continue
            if member.channel.has_unread():  # it spoke while this thread was busy with another
                continue
            self._lose(member, f"it said nothing for {limit_s:g} s")
            self._launcher.kill(member.rank)

    def _longest_silence_s(self, member: Member) -> float:
        """A rank that waits for others to join its group says nothing meanwhile."""
        forming_s = groups.FORM_S if member.is_forming else 0.0
        return self._config.rank_timeout_s + forming_s

    def _restart_ended(self) -> None:
        for rank, how in self._launcher.ended():
            problem = EngineUnavailable(
                f"the process of rank {rank} ended {how} before it joined",
                code="rank_lost",
                param="ranks",
                actual=rank,
            )
            if self.formed.is_set():
                self._launcher.restart(rank, self._place)
            elif self.problem is None:
                self._fail_start(problem)

    def _form_if_needed(self) -> None:
        """Form a group of the ranks that are there. The first group is of all."""
        least = 0 if self.formed.is_set() else self._place.num_ranks
        forming = self._roster.begin_forming(least_ranks=least)
        if forming is None:
            return
        if forming.old is not None:
            forming.old.abort()
        group = self._form(forming) if forming.members else None
        if self._roster.end_forming(forming, group):
            self.formed.set()
        elif group is not None:
            group.abort()  # the engine stopped meanwhile
        self._on_change(self._roster.num_present)

    def _form(self, forming: Forming) -> Group | None:
        num_ranks = len(forming.members) + 1
        for rank, member in enumerate(forming.members, 1):
            member.is_forming, member.heard_at = True, time.monotonic()
            try:
                member.channel.send(Form(forming.generation, rank, num_ranks))
            except OSError:
                self._lose(member, "it takes no messages")
                return None
        try:
            return Group(self._store, forming.generation, 0, num_ranks)
        except (DistError, RuntimeError) as error:
            logger.warning("The ranks did not form a group", exc_info=error)
            return None
