"""What a text would take, which way it would run, and whether it is let in at all."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.config import EngineConfig
from engine.errors import DeadlineExceeded, InsufficientMemory, InvalidInput
from engine.memory import free_bytes
from engine.model.embedding_model import EmbeddingModel
from engine.model.tiles import can_tile, kept_bytes, tile_rows
from engine.price import price_of
from engine.throughput import Pace
from engine.types import Plan

MOST_TOKENS = 1 << 40
"""Of a plan. More than any machine's memory holds, and its bytes can still be told in 64 bits."""

_KEEP_SHARE = 4
"""A sweep keeps its projections where that leaves room for so many like it."""

_DOUBT = 1.5
"""A text is refused for its deadline only if it would miss it even this much faster than priced."""


class Planner:
    """Prices texts of any model within one memory budget."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        self._sweeps_from = config.sweep_tokens_on(device.type)
        self.max_bytes = config.max_sweep_bytes or free_bytes(device) // 2
        # Prices are measured once; what else the machine does changes, and is followed here.
        self._pace = Pace()

    def is_swept(self, model: EmbeddingModel, tokens: int) -> bool:
        """Whether a text of this length is read tile by tile."""
        return tokens >= self._sweeps_from and can_tile(model.encoder)

    def keeps_projections(self, model: EmbeddingModel, tokens: int) -> bool:
        """Whether a sweep has the room to make each layer's projections only once."""
        needed = kept_bytes(model.encoder, tokens, keep_projections=True)
        return needed * _KEEP_SHARE <= self.max_bytes

    def plan(self, model: EmbeddingModel, tokens: int) -> Plan:
        """How a text of so many tokens would run. Measures a model that it has not met before."""
        if not 1 <= tokens <= MOST_TOKENS:
            raise InvalidInput(
                f"tokens must be 1 to {MOST_TOKENS}, got {tokens}",
                param="tokens",
                limit=1 if tokens < 1 else MOST_TOKENS,
                actual=tokens,
            )
        swept = self.is_swept(model, tokens)
        keep = swept and self.keeps_projections(model, tokens)
        rows = tile_rows(model.encoder, tokens) if swept else tokens
        needed = self._bytes(model, tokens, swept=swept, keep=keep)
        return Plan(
            model=model.name,
            tokens=tokens,
            fits=tokens <= model.info.max_tokens and needed <= self.max_bytes,
            path="swept" if swept else "packed",
            bytes=needed,
            seconds=self._pace.factor * self._seconds(model, tokens, swept=swept, keep=keep),
            tiles=-(-tokens // rows),
            tile_tokens=rows,
            keeps_projections=keep,
            max_tokens=model.info.max_tokens,
            max_bytes=self.max_bytes,
        )

    def admit(self, plan: Plan, timeout_s: float | None) -> None:
        """Refuse what does not fit in memory, or would not be done in time even alone."""
        if plan.bytes > self.max_bytes:
            raise InsufficientMemory(
                f"A text of {plan.tokens} tokens takes {plan.bytes} bytes here, "
                f"and {self.max_bytes} may be used.",
                limit=self.max_bytes,
                actual=plan.bytes,
            )
        if timeout_s is not None and plan.seconds > timeout_s * _DOUBT:
            raise DeadlineExceeded(
                f"A text of {plan.tokens} tokens takes about {plan.seconds:.3g} s here, "
                f"and {timeout_s:g} s are left.",
                limit=timeout_s,
                actual=round(plan.seconds, 3),
            )

    def admit_diagnosis(self, tokens: int, num_bytes: int) -> None:
        """Refuse a look into a text that holds more than there is memory for."""
        if num_bytes > self.max_bytes:
            raise InsufficientMemory(
                f"Looking into a text of {tokens} tokens takes {num_bytes} bytes here, "
                f"and {self.max_bytes} may be used.",
                limit=self.max_bytes,
                actual=num_bytes,
            )

    def ran_batch(self, model: EmbeddingModel, lengths: Sequence[int], seconds: float) -> None:
        """Texts of these lengths took so long together."""
        self._pace.add(price_of(model.encoder).batch_seconds(lengths), seconds)

    def ran_sweep(self, model: EmbeddingModel, tokens: int, seconds: float) -> None:
        """The device spent so long on a text that was swept."""
        keep = self.keeps_projections(model, tokens)
        self._pace.add(self._seconds(model, tokens, swept=True, keep=keep), seconds)

    def _bytes(self, model: EmbeddingModel, tokens: int, *, swept: bool, keep: bool) -> int:
        price = price_of(model.encoder)
        if not swept or price.tile is None:
            return price.packed_bytes(tokens)
        held = kept_bytes(model.encoder, tokens, keep_projections=keep)
        return held + price.tile.visit_peak(tokens, keep_projections=keep)

    def _seconds(self, model: EmbeddingModel, tokens: int, *, swept: bool, keep: bool) -> float:
        price = price_of(model.encoder)
        if not swept or price.tile is None:
            return price.batch_seconds([tokens])
        return price.tile.sweep_seconds(tokens, keep_projections=keep)
