"""Plans texts: how each would run, what it would take, and whether it is admitted."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from engine.config import EngineConfig
from engine.errors import DeadlineExceeded, InsufficientMemory, InvalidInput
from engine.execution.cost_model import price_of
from engine.model.embedding_model import EmbeddingModel
from engine.model.tiled_pass import can_tile, kept_bytes, tile_rows
from engine.platform.memory import free_bytes
from engine.scheduling.admission import Throughput
from engine.scheduling.deadline import Deadline
from engine.text.chunking import OPENING_TOKENS, SHARES
from engine.types import ChunkPlan, Context, Plan

MOST_TOKENS = 1 << 40
"""Most tokens of a plan: more than any machine has memory for, yet their bytes fit in 64 bits."""

_KEEP_SHARE = 4
"""A tiled text keeps its projections where memory has room for this many such texts."""

_DOUBT = 1.5
"""A text is refused for its deadline only if it would miss it even at this many times the speed."""

_FORGOTTEN_BY_HALF_S = 30.0


class Pace:
    """How many times longer than priced work takes just now.

    A measurement that nothing confirms fades. Otherwise, if a slow spell made all work seem too
    long to be admitted, nothing would run that could show that it is over.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._measured = Throughput()
        self._measured.add(1.0, 1.0)
        self._measured_at = clock()

    def add(self, priced_s: float, took_s: float) -> None:
        self._measured.add(priced_s, took_s)
        self._measured_at = self._clock()

    @property
    def factor(self) -> float:
        age_s = self._clock() - self._measured_at
        weight = math.pow(0.5, age_s / _FORGOTTEN_BY_HALF_S)
        return 1.0 + weight * (self._measured.seconds_for(1.0) - 1.0)


class Planner:
    """Plans texts of several models within one memory budget."""

    def __init__(
        self,
        config: EngineConfig,
        device: torch.device,
        *,
        num_ranks_for: Callable[[EmbeddingModel, int], int] = lambda model, tokens: 1,
    ) -> None:
        """`num_ranks_for` says how many ranks would read a tiled text of this many tokens."""
        self._tiled_from = config.sweep_tokens_on(device.type)
        self._batch_tokens = config.batch_tokens_on(device.type)
        self.max_bytes = config.max_sweep_bytes or free_bytes(device) // 2
        # Prices are measured once. The pace follows what else the machine does.
        self._pace = Pace()
        self._num_ranks_for = num_ranks_for

    def is_tiled(self, model: EmbeddingModel, tokens: int) -> bool:
        """Whether a text of this length is read tile by tile."""
        return tokens >= self._tiled_from and can_tile(model.encoder)

    def num_ranks(self, model: EmbeddingModel, tokens: int) -> int:
        """How many ranks would read a text of this length together."""
        return self._num_ranks_for(model, tokens) if self.is_tiled(model, tokens) else 1

    def keeps_projections(self, model: EmbeddingModel, tokens: int) -> bool:
        """Whether there is room to compute each layer's projections only once. With ranks, ask for
        the tokens that one of them reads."""
        needed = kept_bytes(model.encoder, tokens, keep_projections=True)
        return needed * _KEEP_SHARE <= self.max_bytes

    def plan(self, model: EmbeddingModel, tokens: int, *, tiled: bool | None = None) -> Plan:
        """How a text of this many tokens would run. The first plan of a model measures it.

        Whether it is tiled follows from its length, unless it is said.
        """
        if not 1 <= tokens <= MOST_TOKENS:
            raise InvalidInput(
                f"tokens must be 1 to {MOST_TOKENS}, got {tokens}",
                param="tokens",
                limit=1 if tokens < 1 else MOST_TOKENS,
                actual=tokens,
            )
        ranks = self.num_ranks(model, tokens) if tiled is None else 1
        own = -(-tokens // ranks)
        tiled = self.is_tiled(model, tokens) if tiled is None else tiled
        keep = tiled and self.keeps_projections(model, own)
        rows = tile_rows(model.encoder, tokens) if tiled else tokens
        needed = self._bytes(model, own, tiled=tiled, keep=keep)
        return Plan(
            model=model.name,
            tokens=tokens,
            fits=tokens <= model.info.max_tokens and needed <= self.max_bytes,
            path="swept" if tiled else "packed",
            bytes=needed,
            seconds=self._pace.factor * self._seconds(model, own, tiled=tiled, keep=keep),
            tiles=-(-own // rows),
            tile_tokens=rows,
            keeps_projections=keep,
            max_tokens=model.info.max_tokens,
            max_bytes=self.max_bytes,
            tokens_read=tokens,
            ranks=ranks,
        )

    def bytes_to_hold(self, model: EmbeddingModel, plan: Plan) -> int:
        """Memory to keep free for a text from its first tile to its last. Ranks may be lost before
        it begins, and this process then reads it alone, if it can."""
        if plan.ranks == 1:
            return plan.bytes
        alone = self.plan(model, plan.tokens, tiled=True).bytes
        return alone if alone <= self.max_bytes else plan.bytes

    def with_alone(self, model: EmbeddingModel, plan: Plan, *, count: int, tokens: int) -> Plan:
        """The plan of a document, with this many texts read alone besides, of this many tokens
        together."""
        if not count:
            return plan
        price = price_of(model.encoder)
        batches = -(-tokens // self._batch_tokens)
        seconds = price.batch_seconds([tokens // count]) - price.call_s
        seconds = seconds * count + price.call_s * batches
        return replace(
            plan,
            seconds=plan.seconds + self._pace.factor * seconds,
            tokens_alone=tokens,
        )

    def of_passages(
        self,
        model: EmbeddingModel,
        tokens: int,
        *,
        count: int,
        alone: int,
        longest: int,
        linked: bool,
    ) -> Plan:
        """The plan of a document of so many tokens that is not read as a whole, but in this many
        texts, of `alone` tokens together. Linked passages are one text."""
        largest = self.plan(model, longest, tiled=True if linked else None)
        plan = self.with_alone(model, replace(largest, seconds=0.0), count=count, tokens=alone)
        fits = tokens <= plan.max_tokens and plan.bytes <= plan.max_bytes
        return replace(plan, tokens=tokens, tokens_read=0, fits=fits)

    def with_context(
        self, model: EmbeddingModel, plan: Plan, context: Context, *, vector: bool = True
    ) -> Plan:
        """The plan of a document with chunks of the usual size and this context, with or without
        the document's own vector."""
        shares = SHARES[context]
        if not shares.alone:
            return plan
        special = model.tokenizer.num_prefix + model.tokenizer.num_suffix
        content = max(plan.tokens - special, 1)
        count = -(-content // ChunkPlan.tokens)
        if shares.opening:
            begin = OPENING_TOKENS - model.tokenizer.num_prefix
            count, content = count + 1, content + min(content, begin)
        alone = content + special * count
        if vector or shares.alone < 1:
            return self.with_alone(model, plan, count=count, tokens=alone)
        linked = shares.linked and can_tile(model.encoder)
        longest = alone if linked else min(plan.tokens, ChunkPlan.tokens + special)
        return self.of_passages(
            *(model, plan.tokens), count=count, alone=alone, longest=longest, linked=linked
        )

    def admit(self, plan: Plan, deadline: Deadline) -> None:
        """Refuse a text that does not fit in memory, or would miss its deadline even alone."""
        if plan.bytes > self.max_bytes:
            raise InsufficientMemory(
                f"A text of {plan.tokens} tokens needs {plan.bytes} bytes of memory here; "
                f"the limit is {self.max_bytes}.",
                limit=self.max_bytes,
                actual=plan.bytes,
            )
        left_s = deadline.left_s
        if left_s is not None and plan.seconds > left_s * _DOUBT:
            besides = (
                f" with passages of {plan.tokens_alone} tokens read alone"
                if plan.tokens_alone
                else ""
            )
            is_read_twice = plan.tokens_alone and plan.tokens_read
            advice = ' The context "late" reads no passage alone.' if is_read_twice else ""
            raise DeadlineExceeded(
                f"A text of {plan.tokens} tokens{besides} takes about {plan.seconds:.3g} s here; "
                f"{max(left_s, 0):.3g} s of {deadline.timeout_s:g} s are left.{advice}",
                limit=deadline.timeout_s,
                actual=round(plan.seconds, 3),
            )

    def admit_diagnosis(self, tokens: int, num_bytes: int) -> None:
        """Refuse an analysis that needs more memory than there is."""
        if num_bytes > self.max_bytes:
            raise InsufficientMemory(
                f"Analysing a text of {tokens} tokens needs {num_bytes} bytes of memory here; "
                f"the limit is {self.max_bytes}.",
                limit=self.max_bytes,
                actual=num_bytes,
            )

    def record_batch(self, model: EmbeddingModel, lengths: Sequence[int], seconds: float) -> None:
        """Record how long a batch of these lengths took."""
        self._pace.add(price_of(model.encoder).batch_seconds(lengths), seconds)

    def record_tiled(
        self, model: EmbeddingModel, tokens: int, seconds: float, *, ranks: int = 1
    ) -> None:
        """Record how long the device spent on a tiled text, or on its part of one that this many
        ranks read."""
        tokens = -(-tokens // ranks)
        keep = self.keeps_projections(model, tokens)
        self._pace.add(self._seconds(model, tokens, tiled=True, keep=keep), seconds)

    def _bytes(self, model: EmbeddingModel, tokens: int, *, tiled: bool, keep: bool) -> int:
        price = price_of(model.encoder)
        if not tiled or price.tile is None:
            return price.packed_bytes(tokens)
        held = kept_bytes(model.encoder, tokens, keep_projections=keep)
        return held + price.visit_peak(tokens, keep_projections=keep)

    def _seconds(self, model: EmbeddingModel, tokens: int, *, tiled: bool, keep: bool) -> float:
        price = price_of(model.encoder)
        if not tiled or price.tile is None:
            return price.batch_seconds([tokens])
        return price.tile.seconds_for(tokens, keep_projections=keep)
