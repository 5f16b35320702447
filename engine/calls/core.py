"""What every call of the engine needs: the models, the device worker and the limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import TypeVar

from engine.analysis.cache import ByteCache
from engine.config import EngineConfig, check_aliases
from engine.errors import LLNError, ModelNotFound, unknown_name
from engine.execution.input_checks import check_room_for_states
from engine.execution.inputs import PreparedText
from engine.execution.model_runner import run_batch
from engine.execution.planner import Planner
from engine.execution.tokenizer_pool import TokenizerPool
from engine.living.segmented_run import open_run
from engine.model.embedding_model import EmbeddingModel
from engine.platform.idle_memory import IdleMemory
from engine.ranks.fleet import Fleet
from engine.ranks.launcher import RankLauncher
from engine.ranks.opening import open_over_ranks
from engine.scheduling.admission import MemoryBudget
from engine.scheduling.deadline import Deadline
from engine.scheduling.executor import TiledWork
from engine.scheduling.observer import EngineObserver
from engine.scheduling.request import TimedResult
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.worker import DeviceWorker
from engine.steps import Steps
from engine.types import EmbedOptions, Vector

DEFAULTS = EmbedOptions()
DEFAULT_CONFIG = EngineConfig()
NO_DEADLINE = Deadline(None)
T = TypeVar("T")


class EngineCore:
    """Several models behind one device worker."""

    def __init__(
        self,
        models: Sequence[EmbeddingModel],
        *,
        config: EngineConfig = DEFAULT_CONFIG,
        observer: EngineObserver | None = None,
        aliases: Mapping[str, str] | None = None,
        launcher: RankLauncher | None = None,
    ) -> None:
        """`aliases` are other names of the models, each with the model's own. `launcher` starts
        the other ranks, where this process does not start them itself."""
        assert models, "an engine serves at least one model"
        self.config = config
        self._observer = observer or EngineObserver()
        self._models = {model.name: model for model in models}
        self._default = models[0]
        self._aliases = dict(aliases or {})
        check_aliases(self._aliases, self._models)
        for model in models:
            check_room_for_states(model, config)
        self._infos = {
            name: replace(model.info, aliases=(*model.info.aliases, *self._aliases_of(name)))
            for name, model in self._models.items()
        }
        self._open = ByteCache(max_bytes=config.max_open_bytes, max_idle_s=config.max_open_idle_s)
        self._fleet = self._new_fleet(models, launcher)
        self._planner = Planner(
            config,
            models[0].encoder.device,
            num_ranks_for=self._fleet.num_ranks_for if self._fleet else lambda model, tokens: 1,
        )
        self._analysis_memory = MemoryBudget(self._planner.max_bytes)
        self._pool = TokenizerPool(max_characters=config.max_queue_characters)
        self._worker = DeviceWorker[PreparedText, Vector](
            run_batch=self._run_batch,
            open_tiled=self._open_tiled_run,
            scheduler=_scheduler(models, config, self._planner.max_bytes),
            observer=self._observer,
            on_idle=IdleMemory().give_back,
        )

    def _model(self, name: str | None) -> EmbeddingModel:
        if name is None:
            return self._default
        own = self._aliases.get(name, name)
        if own not in self._models:
            raise unknown_name(
                "model",
                name,
                (*self._models, *self._aliases),
                param="model",
                error=ModelNotFound,
            )
        return self._models[own]

    def _aliases_of(self, name: str) -> Iterator[str]:
        return (alias for alias, own in self._aliases.items() if own == name)

    async def _read(
        self,
        steps: Steps[list[PreparedText]],
        deadline: Deadline = NO_DEADLINE,
        *,
        characters: int,
        is_admitted: bool = False,
    ) -> list[PreparedText]:
        """Tokenise texts."""
        with self._counting_rejections():
            async with deadline.over():
                return await self._tokenise(
                    steps,
                    lambda texts: sum(text.num_tokens for text in texts),
                    num_texts=len,
                    characters=characters,
                    is_admitted=is_admitted,
                )

    async def _tokenise(
        self,
        steps: Steps[T],
        num_tokens: Callable[[T], int],
        *,
        num_texts: Callable[[T], int] = lambda _: 1,
        characters: int,
        is_admitted: bool = False,
    ) -> T:
        """Run the tokenizer off the event loop, and report what it read."""
        started_at = perf_counter()
        found = await self._pool.run(steps, characters=characters, is_admitted=is_admitted)
        self._observer.tokenised(
            texts=num_texts(found),
            tokens=num_tokens(found),
            seconds=perf_counter() - started_at,
        )
        return found

    async def _run_analysis(
        self,
        steps: Steps[T],
        model: EmbeddingModel,
        tokens: int,
        deadline: Deadline,
        *,
        num_bytes: int,
    ) -> TimedResult[T]:
        """Run the steps of one analysis as soon as the memory that they need is free."""
        with self._counting_rejections():
            self._planner.admit_diagnosis(tokens, num_bytes)
        async with deadline.over(), self._analysis_memory.reserve(num_bytes):
            with self._worker.session() as session:
                return await session.run_steps(
                    steps, kind="diagnosis", model=model.name, tokens=tokens
                )

    def _run_batch(self, name: str, texts: Sequence[PreparedText]) -> list[Vector]:
        model, started_at = self._models[name], perf_counter()
        vectors = run_batch(model, texts)
        lengths = [text.num_embedded for text in texts]
        self._planner.record_batch(model, lengths, perf_counter() - started_at)
        return vectors

    def _open_tiled_run(self, name: str, text: PreparedText) -> TiledWork[Vector]:
        model, on_out_of_memory = self._models[name], self._observer.recovered_from_oom
        run = open_over_ranks(self._fleet, self._planner, model, text, on_out_of_memory)
        if run is not None:
            return run
        return open_run(
            model,
            text,
            keep_projections=self._planner.keeps_projections(model, text.num_embedded),
            on_out_of_memory=on_out_of_memory,
        )

    def _new_fleet(
        self, models: Sequence[EmbeddingModel], launcher: RankLauncher | None
    ) -> Fleet | None:
        if self.config.ranks == 1 and launcher is None:
            return None
        return Fleet(
            *(models, self.config, launcher),
            on_change=self._observer.ranks_changed,
            on_lost=self._observer.rank_lost,
        )

    @contextmanager
    def _counting_rejections(self) -> Iterator[None]:
        """For checks made before the device worker, which counts the requests that it refuses."""
        try:
            yield
        except LLNError as error:
            self._observer.rejected(reason=error.code)
            raise


def _scheduler(
    models: Sequence[EmbeddingModel], config: EngineConfig, max_sweep_bytes: int
) -> Scheduler:
    return Scheduler(
        max_batch_tokens=config.batch_tokens_on(models[0].encoder.device.type),
        max_batch_sequences=config.max_batch_sequences,
        max_batch_s=config.max_batch_s,
        max_queue_tokens=config.max_queue_tokens,
        max_sweep_bytes=max_sweep_bytes,
        long_share=config.long_percent / 100,
    )
