"""All ranks of an engine, as its first rank uses them: it starts them and reads texts with them.

A reading that loses a rank fails. The ranks that are left form another group, and ranks that this
process started are started again (`engine.ranks.keeper`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from engine.config import EngineConfig
from engine.errors import EngineUnavailable
from engine.execution.inputs import PreparedText
from engine.model.embedding_model import EmbeddingModel
from engine.model.tiled_pass import can_tile
from engine.ranks.channel import Read, Stop
from engine.ranks.door import Door
from engine.ranks.keeper import TICK_S, Keeper
from engine.ranks.launcher import RankLauncher
from engine.ranks.local import LocalRanks
from engine.ranks.place import check_devices, warn_of_few_cores
from engine.ranks.reading import Reading
from engine.ranks.roster import Roster
from engine.ranks.stretch_run import RankRun, divide_text, open_rank
from engine.ranks.worker import CONTACT


class Fleet:
    """All ranks of an engine whose process is the first of them."""

    def __init__(
        self,
        models: Sequence[EmbeddingModel],
        config: EngineConfig,
        launcher: RankLauncher | None = None,
        *,
        on_change: Callable[[int], None] = lambda num_present: None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """Without a launcher, this process starts the other ranks on its own machine.

        `on_change` and `on_lost` are called from the fleet's thread.
        """
        self._config = config
        self._launcher = launcher or _ranks_here(config)
        self._place = self._launcher.first_place()
        assert self._place.rank == 0, "the other ranks run serve_rank"
        self.num_ranks = self._place.num_ranks
        self._roster = Roster(self.num_ranks)
        self._keeper = Keeper(
            self._roster,
            self._place,
            models={model.name: model for model in models},
            config=config,
            launcher=self._launcher,
            on_change=on_change,
            on_lost=on_lost,
        )
        self._door: Door | None = None

    @property
    def num_present(self) -> int:
        """The ranks that can read a document now, the first one included."""
        return self._roster.num_present

    def process_ids(self) -> dict[int, int]:
        """The processes of the ranks that were started on this machine, by rank."""
        return self._launcher.process_ids()

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
            store = self._place.open_store(config.rank_start_s)
            key = self._place.key or secrets.token_hex(32)
            self._door = Door(self._launcher.door_host, key.encode(), self._keeper.let_in)
            told = "" if self._place.key else key
            store.set(CONTACT, f"{self._door.port} {told}")
            self._keeper.start(store)
            self._launcher.start(self._place)
            self._await_start(time.monotonic() + config.rank_start_s)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Let the other ranks end."""
        self._keeper.stop()
        if self._door is not None:
            self._door.close()
        group = self._roster.close()
        for member in self._roster.members():
            with suppress(OSError):
                member.channel.send(Stop())
        if group is not None:
            group.abort()
        self._launcher.stop()

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
        self._keeper.awaken()
        return run

    def _close(self, reading: Reading, is_done: bool) -> None:
        """The first rank's part is over. If the others' are not, a new group tells them to stop."""
        self._roster.end_reading(reading, must_form=not is_done)
        self._keeper.awaken()

    def _await_start(self, ends_at: float) -> None:
        while not self._keeper.formed.wait(TICK_S):
            if self._keeper.ended.is_set():
                raise EngineUnavailable("The engine stopped while it waited for its ranks.")
            if self._keeper.problem is not None:
                raise self._keeper.problem
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


def _ranks_here(config: EngineConfig) -> LocalRanks:
    check_devices(config, config.ranks)
    warn_of_few_cores(config, config.ranks)
    return LocalRanks(config.ranks)
