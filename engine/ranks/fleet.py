"""The first rank's view of the others: who is there, what they read, and what happens to the lost.

One thread keeps the ranks: it welcomes those that connect, hands out parts, and notices who ends or
says nothing for too long. A reading that loses a rank fails. The ranks that are left form another
group, and ranks that this process started are started again.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import Any

from torch.distributed import DistError

from engine.config import EngineConfig
from engine.errors import EngineUnavailable, LLNError
from engine.execution.inputs import PreparedText
from engine.model.embedding_model import EmbeddingModel
from engine.model.tiled_pass import can_tile
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
    Read,
    Ready,
    Stop,
    Welcome,
)
from engine.ranks.door import Door
from engine.ranks.group import Group
from engine.ranks.local import LocalRanks
from engine.ranks.place import RankPlace, check_devices
from engine.ranks.reading import Reading
from engine.ranks.roster import Forming, Member, Roster
from engine.ranks.stretch_run import RankRun, divide_text, open_rank
from engine.ranks.worker import CONTACT

_TICK_S = 0.25
"""How often the thread looks for ranks that say nothing and for processes that ended."""

logger = logging.getLogger(__name__)


class Fleet:
    """All ranks of an engine whose process is the first of them."""

    def __init__(
        self,
        models: Sequence[EmbeddingModel],
        config: EngineConfig,
        place: RankPlace | None = None,
        *,
        on_change: Callable[[int], None] = lambda num_present: None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """Without a place that a launcher gave, this process starts the other ranks itself.

        `on_change` and `on_lost` are called from the fleet's thread.
        """
        self._models = {model.name: model for model in models}
        self._config = config
        self._on_change, self._on_lost = on_change, on_lost
        self._local = LocalRanks(config.ranks) if place is None else None
        if place is None:
            check_devices(config, config.ranks)
        self._place = place or self._local_place()
        assert self._place.rank == 0, "the other ranks run serve_rank"
        self.num_ranks = self._place.num_ranks
        self._roster = Roster(self.num_ranks)
        self._problem: LLNError | None = None  # of the start
        self._formed = threading.Event()
        self._ended = threading.Event()
        self._door: Door | None = None
        self._awake, self._wake = Pipe(duplex=False)

    @property
    def num_present(self) -> int:
        """The ranks that can read a document now, the first one included."""
        return self._roster.num_present

    def process_ids(self) -> dict[int, int]:
        """The processes of the ranks that this one started."""
        return {} if self._local is None else self._local.process_ids()

    @property
    def bytes_sent(self) -> int:
        """Bytes that the first rank has sent in the exchanges of the present group."""
        return self._roster.bytes_sent

    @property
    def is_busy(self) -> bool:
        """Whether the ranks read a text."""
        return self._roster.is_busy

    def num_ranks_for(self, model: EmbeddingModel, tokens: int) -> int:
        """How many ranks would read a text of this many tokens now."""
        if tokens < self._config.min_rank_tokens or not can_tile(model.encoder):
            return 1
        return self.num_present

    def start(self) -> None:
        """Return when all ranks have joined. Raises what keeps one from it."""
        config = self._config
        try:
            self._store = self._place.open_store(config.rank_start_s)
            key = self._place.key or secrets.token_hex(32)
            host = self._place.address if self._local is not None else ""
            self._door = Door(host, key.encode(), self._let_in)
            told = "" if self._place.key else key
            self._store.set(CONTACT, f"{self._door.port} {told}")
            threading.Thread(target=self._keep, name="lln-ranks-keeper", daemon=True).start()
            if self._local is not None:
                self._local.start(self._place)
            self._await_start(time.monotonic() + config.rank_start_s)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Let the other ranks end."""
        self._ended.set()
        self._awaken()
        if self._door is not None:
            self._door.close()
        group = self._roster.close()
        for member in self._roster.members():
            with suppress(OSError):
                member.channel.send(Stop())
        if group is not None:
            group.abort()
        if self._local is not None:
            self._local.stop()

    def try_open(
        self,
        model: EmbeddingModel,
        text: PreparedText,
        *,
        keep_projections: bool,
        on_out_of_memory: Callable[[], None] = lambda: None,
    ) -> RankRun | None:
        """The first rank's part of this text, while the others begin theirs; None if the ranks
        are busy, or are to form a group first."""
        begun = self._roster.begin_reading()
        if begun is None:
            return None
        reading, readers = begun
        try:
            own, *others = divide_text(model, text, len(readers) + 1)
            run = open_rank(
                *(model, own, reading),
                keep_projections=keep_projections,
                on_out_of_memory=on_out_of_memory,
                on_close=lambda is_done: self._close(reading, is_done),
            )
        except BaseException:
            self._close(reading, is_done=True)  # the others know nothing of it
            raise
        parts = [Read(reading.number, model.name, part, keep_projections) for part in others]
        self._roster.give_parts(reading, list(zip(readers, parts, strict=True)))
        self._awaken()
        return run

    def _close(self, reading: Reading, is_done: bool) -> None:
        """The first rank's part is over. If the others' are not, a new group tells them to stop."""
        self._roster.end_reading(reading, must_form=not is_done)
        self._awaken()

    def _await_start(self, ends_at: float) -> None:
        while not self._formed.wait(_TICK_S):
            if self._ended.is_set():
                raise EngineUnavailable("The engine stopped while it waited for its ranks.")
            if self._problem is not None:
                raise self._problem
            if time.monotonic() > ends_at:
                present = [one.rank for one in self._roster.members() if one.is_ready]
                missing = sorted(set(range(1, self.num_ranks)) - set(present))
                raise EngineUnavailable(
                    f"{len(present) + 1} of {self.num_ranks} ranks joined within "
                    f"{self._config.rank_start_s:g} s; missing: {', '.join(map(str, missing))}",
                    code="ranks_missing",
                    param="ranks",
                    limit=self.num_ranks,
                    actual=len(present) + 1,
                )

    def _local_place(self) -> RankPlace:
        assert self._local is not None, "no launcher gave a place"
        return self._local.first_place()

    def _awaken(self) -> None:
        with suppress(OSError):
            self._wake.send_bytes(b"")

    def _let_in(self, channel: Channel) -> None:
        self._roster.add(channel)
        self._awaken()

    # On the keeper's thread

    def _keep(self) -> None:
        while not self._ended.is_set():
            try:
                self._turn()
            except Exception as error:
                logger.exception("Keeping the ranks failed", exc_info=error)
                time.sleep(_TICK_S)

    def _turn(self) -> None:
        waiting: dict[Any, Member] = {
            member.channel.connection: member for member in self._roster.members()
        }
        for connection in wait([*waiting, self._awake], _TICK_S):
            if connection is self._awake:
                self._awake.recv_bytes()
            else:
                self._hear(waiting[connection])
        self._send_parts()
        self._drop_the_silent()
        if self._local is not None:
            self._restart_ended(self._local)
        self._form_if_needed()

    def _hear(self, member: Member) -> None:
        try:
            message = member.channel.receive(0)
        except (EOFError, OSError):
            self._lose(member, "its process ended or its connection broke")
            return
        except Exception as error:  # what a rank of another version may send
            self._lose(member, f"it sent what is no message: {error!r}")
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
        problem = problem_of_rank(hello, self.num_ranks, taken)
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
        if not self._formed.is_set():
            self._problem = problem
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
            if self._local is not None:
                self._local.kill(member.rank)

    def _longest_silence_s(self, member: Member) -> float:
        """A rank that waits for others to join its group says nothing meanwhile."""
        forming_s = groups.FORM_S if member.is_forming else 0.0
        return self._config.rank_timeout_s + forming_s

    def _restart_ended(self, local: LocalRanks) -> None:
        for rank, status in local.ended():
            problem = EngineUnavailable(
                f"the process of rank {rank} ended with status {status} before it joined",
                code="rank_lost",
                param="ranks",
                actual=rank,
            )
            if self._formed.is_set():
                local.restart(rank, self._place)
            elif self._problem is None:
                self._fail_start(problem)

    def _form_if_needed(self) -> None:
        """Form a group of the ranks that are there. The first group is of all."""
        least = 0 if self._formed.is_set() else self.num_ranks
        forming = self._roster.begin_forming(least_ranks=least)
        if forming is None:
            return
        if forming.old is not None:
            forming.old.abort()
        group = self._form(forming) if forming.members else None
        if self._roster.end_forming(forming, group):
            self._formed.set()
        elif group is not None:
            group.abort()  # the engine stopped meanwhile
        self._on_change(self.num_present)

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
