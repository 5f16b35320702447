"""A rank other than the first: it joins, loads what the first rank serves, and reads its parts."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from multiprocessing import AuthenticationError

import torch
from torch.distributed import DistError, Store  # type: ignore[attr-defined]

from engine.config import EngineConfig
from engine.errors import EngineUnavailable, InvalidInput, LLNError, RankLost
from engine.model.embedding_model import EmbeddingModel, load_models
from engine.ranks.channel import (
    Channel,
    Failed,
    Form,
    Formed,
    Hello,
    Message,
    Pulse,
    Read,
    Ready,
    Stop,
    Welcome,
)
from engine.ranks.group import Group
from engine.ranks.place import RankPlace
from engine.ranks.stretch_run import open_rank
from engine.scheduling.request import error_for_caller

CONTACT = "contact"
"""Where the first rank leaves its port and its key in the store."""

_IDLE_S = 0.5

logger = logging.getLogger(__name__)


def serve_rank(place: RankPlace, *, join_s: float = 60.0) -> None:
    """Reads parts of documents until the first rank stops.

    Raises EngineUnavailable if the first rank cannot be reached or goes away, and the first rank's
    error if it refuses this one.
    """
    store = place.open_store(join_s)
    channel = _connect(place, store, join_s)
    try:
        RankWorker(place, store, channel).run()
    finally:
        channel.close()


def _connect(place: RankPlace, store: Store, timeout_s: float) -> Channel:
    try:
        port, _, key = store.get(CONTACT).decode().partition(" ")
        return Channel.connect((place.address, int(port)), (key or place.key).encode(), timeout_s)
    except AuthenticationError as error:
        raise InvalidInput(
            f"rank {place.rank} has another RANK_KEY than the first rank",
            code="wrong_rank_key",
            param="RANK_KEY",
        ) from error
    except (DistError, RuntimeError, OSError, EOFError) as error:
        raise EngineUnavailable(
            f"rank {place.rank} found no first rank at {place.address}:{place.port} "
            f"within {timeout_s:g} s",
            code="rank_unreachable",
            param="MASTER_ADDR",
            limit=timeout_s,
            actual=f"{place.address}:{place.port}",
        ) from error


class RankWorker:
    """One rank's life, from its first words on."""

    def __init__(self, place: RankPlace, store: Store, channel: Channel) -> None:
        self._place, self._store, self._channel = place, store, channel
        self._pulse = Pulse(channel)
        self._group: Group | None = None
        self._models: dict[str, EmbeddingModel] = {}

    def run(self) -> None:
        try:
            self._channel.send(Hello(self._place.rank, self._place.num_ranks))
            while not isinstance(message := self._next_message(), Stop):
                self._do(message)
        except (EOFError, OSError) as error:
            raise EngineUnavailable(
                f"rank {self._place.rank} ends: the first rank is gone", code="rank_lost"
            ) from error

    def _next_message(self) -> Message:
        while (message := self._channel.receive(_IDLE_S)) is None:
            self._pulse.beat()
        return message

    def _do(self, message: Message) -> None:
        match message:
            case Failed(error):
                raise error
            case Welcome(names, config):
                self._load(names, config)
            case Form():
                self._form(message)
            case Read():
                self._read(message)

    def _load(self, names: tuple[str, ...], config: EngineConfig) -> None:
        try:
            models = load_models(names, config=_on_own_device(config, self._place))
        except Exception as error:
            problem = error_for_caller(error)
            self._channel.send(Failed(problem))
            raise problem from error
        self._models = {model.name: model for model in models}
        self._channel.send(Ready(tuple(model.info for model in models)))

    def _form(self, asked: Form) -> None:
        self._leave_group()
        try:
            self._group = Group(self._store, asked.generation, asked.rank, asked.num_ranks)
        except (DistError, RuntimeError) as error:
            logger.warning("Group %d did not form", asked.generation, exc_info=error)
        self._channel.send(Formed(asked.generation, self._group is not None))

    def _read(self, asked: Read) -> None:
        """Reads a part, unless the first rank has something else to say meanwhile."""
        if self._group is None:
            left = RankLost(
                f"Rank {self._place.rank} is no longer with the ranks of this document.",
                retry_after_s=1.0,
            )
            self._channel.send(Failed(left, asked.reading))  # or the others would wait for ever
            return
        try:
            run = open_rank(
                self._models[asked.model],
                asked.text,
                self._group,
                keep_projections=asked.keep_projections,
            )
            while run.result is None and not self._channel.connection.poll():
                run.step()
                self._pulse.beat()
        except RankLost:
            self._leave_group()  # the first rank forms another
        except (EOFError, OSError):
            raise
        except Exception as error:
            logger.warning("A stretch of %d tokens failed", len(asked.text.ids), exc_info=error)
            self._leave_group()
            self._channel.send(Failed(error_for_caller(error), asked.reading))

    def _leave_group(self) -> None:
        if self._group is not None:
            self._group.abort()
            self._group = None


def _on_own_device(config: EngineConfig, place: RankPlace) -> EngineConfig:
    if config.device == "cpu" or not torch.cuda.is_available():
        return config
    return replace(config, device=f"cuda:{place.local_rank}")


def _end_with_first_rank(rank: int) -> None:
    """Also while this process waits for the first rank or loads, and hears nothing else."""
    os.read(sys.stdin.fileno(), 1)  # returns when the first rank's process has ended
    print(f"rank {rank} ends: the first rank is gone", file=sys.stderr, flush=True)
    os._exit(1)


def main() -> int:
    """The process that the first rank starts. Its place is in the environment."""
    logging.basicConfig(format="%(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the first rank, which drains
    place = RankPlace.from_environment(os.environ)
    assert place is not None, "the first rank states it"
    threading.Thread(target=_end_with_first_rank, args=(place.rank,), daemon=True).start()
    started_at = time.monotonic()
    try:
        serve_rank(place)
    except LLNError as error:
        print(f"rank {place.rank}: {error.message}", file=sys.stderr)
        return 1
    logger.info("rank %d ended after %.0f s", place.rank, time.monotonic() - started_at)
    return 0


if __name__ == "__main__":
    sys.exit(main())
