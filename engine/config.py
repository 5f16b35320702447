"""The engine's whole configuration: one frozen object, built at an entry point and passed down."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields

from engine.errors import InvalidInput, shown
from engine.platform.process import usable_cores

MAX_COUNT = 2**53 - 1
"""Answers state limits as JSON numbers, which every reader takes exactly up to here."""

MAX_THREADS = 1_024
"""With very many, OpenMP ends the process."""

_ZERO_ALLOWED = (
    "num_threads",
    "max_batch_tokens",
    "max_batch_s",
    "min_sweep_tokens",
    "max_sweep_bytes",
    "drain_timeout_s",
)
_SHARES = ("drift_rate", "drift_max_share")
_LEAST = {
    "rank_timeout_s": 2,  # ranks that have nothing to do say so every 1.5 s
}
_MOST = {
    "long_percent": 90,
    "num_threads": MAX_THREADS,
    "ranks": 1_024,
    "rank_timeout_s": 86_400,
    "rank_start_s": 86_400,
    # Contracts and kernels count these in 32 bits.
    "max_batch_tokens": 2**31 - 1,
    "max_batch_sequences": 2**31 - 1,
    "max_batch_s": 3_600,
    "max_inputs": 2**31 - 1,
    "max_text_tokens": 2**31 - 1,
    "max_softmax_text_tokens": 2**31 - 1,
}


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Limits and sizes of one engine. All counts are in tokens unless the name says otherwise."""

    device: str = "auto"
    """"auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N"."""

    dtype: str = "auto"
    """Precision of the linear layers' products: "auto" (bfloat16 on a GPU, float32 on a CPU),
    "float32", "bfloat16", "float16" (GPU), "int8" (CPU: weights by channel, activations by token)
    or "int8_reduced" (the same with weights in a smaller range). A CPU needs instructions for
    bfloat16 and for int8; without VNNI, "int8" is used as "int8_reduced"."""

    fallback_dtype: str = "none"
    """What to use where `dtype` is not possible, with a warning; "none" refuses to start."""

    num_threads: int = 0
    """Threads for CPU arithmetic; 0 takes the cores that this process may use, within a container's
    quota."""

    max_batch_tokens: int = 0
    """A packed batch takes texts up to this many tokens, or as many as the device reads in
    max_batch_s; a longer text is a separate batch. 0 chooses by device: enough to keep it busy and
    no more, since a batch delays those behind it."""

    max_batch_s: float = 0.1
    """About how long a packed batch may last, judged by the speed of earlier ones, since the next
    text waits for it. A batch may always hold 512 tokens."""

    min_sweep_tokens: int = 0
    """Texts of at least this many tokens are read tile by tile, with other work in between, if the
    model's attention is linear. 0 chooses by device."""

    max_sweep_bytes: int = 0
    """Memory for all texts that are read tile by tile, beyond the models. Diagnoses, maps and
    structures may take as much again. 0 takes half of the memory that is free when the engine is
    created."""

    long_percent: int = 25
    """The least share of the device's time, in percent, for long texts and calls while short texts
    wait too."""

    max_batch_sequences: int = 512
    """A packed batch takes at most this many texts."""

    max_queue_tokens: int = 4_194_304
    """Work is refused while this many tokens wait."""

    max_queue_characters: int = 268_435_456
    """Texts are refused while this many characters wait to be tokenised."""

    max_text_tokens: int = 1_048_576
    """Longest text for a model whose attention is linear."""

    max_softmax_text_tokens: int = 65_536
    """Longest text for a model with a softmax layer, whose cost grows with the square of the
    length."""

    max_exact_pairs: int = 2**34
    """Most pairs of tokens, over all heads, that an exact diagnosis may read."""

    drift_rate: float = 0.001
    """Share of the embedded texts whose attention is sampled for drift; 0 for none."""

    drift_max_tokens: int = 2_048
    """Longer texts are never sampled."""

    drift_max_share: float = 0.02
    """The largest share of its time that the device may spend on sampling."""

    max_inputs: int = 2_048
    """Most texts in one call, as in OpenAI's contract."""

    max_open_bytes: int = 1_073_741_824
    """Memory for open documents. Beyond it, what was computed from them is dropped, and beyond half
    of it the documents themselves, the oldest first."""

    max_open_idle_s: float = 900.0
    """An open document that is not used for this long is closed."""

    max_map_scores: int = 268_435_456
    """Most attention scores computed one by one for a map: those of softmax at 16,384 tokens."""

    max_token_states: int = 16_384
    """Most tokens in one call for the states of tokens."""

    ranks: int = 1
    """Processes that read one long document together, this one included, each with its own device
    (on a CPU, with its part of the cores)."""

    min_rank_tokens: int = 65_536
    """Documents of at least this many tokens are read by all ranks together."""

    rank_timeout_s: float = 30.0
    """A rank that is silent for this long, or for 15 s more while a group forms, counts as lost. At
    least 2."""

    rank_start_s: float = 120.0
    """How long the first rank waits for the others at start."""

    stuck_after_s: float = 600.0
    """A device that runs one unit of work for longer than this counts as stuck and not ready."""

    drain_timeout_s: float = 30.0
    """How long a stopping engine waits for accepted work before it fails what is left."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float):
                _check(field.name, value)

    @property
    def compute_threads(self) -> int:
        return self.num_threads or max(1, usable_cores() // self.ranks)

    def batch_tokens_on(self, device_type: str) -> int:
        """The token budget of one packed batch on a device of this type."""
        return self.max_batch_tokens or (65_536 if device_type == "cuda" else 8_192)

    def sweep_tokens_on(self, device_type: str) -> int:
        """The length from which a text is read tile by tile on a device of this type."""
        return self.min_sweep_tokens or (65_536 if device_type == "cuda" else 1_024)


def _check(name: str, value: float) -> None:
    if name in _SHARES and not 0 <= value <= 1:
        raise _invalid(name, value, "between 0 and 1", 1)
    smallest = 0 if name in (*_ZERO_ALLOWED, *_SHARES) else _LEAST.get(name, 1)
    if not value >= smallest:  # NaN is not either
        raise _invalid(name, value, f"at least {smallest}", smallest)
    largest = _MOST.get(name, MAX_COUNT if isinstance(value, int) else math.inf)
    if value > largest:
        raise _invalid(name, value, f"at most {largest}", largest)


def _invalid(name: str, value: float, wanted: str, limit: float) -> InvalidInput:
    return InvalidInput(
        f"{name} must be {wanted}, got {value}",
        code="invalid_setting",
        param=name,
        limit=limit,
        actual=value,
    )


def check_aliases(aliases: Mapping[str, str], names: Collection[str]) -> None:
    """Raises InvalidInput for an alias of no model, and for one that hides a model."""
    for alias, name in aliases.items():
        if alias in names:
            raise _bad_alias(
                f"the alias {shown(alias)!r} would hide the model of that name", actual=alias
            )
        if name not in names:
            known = ", ".join(names)
            raise _bad_alias(
                f"the alias {shown(alias)!r} stands for {shown(name)!r}, which is not served; "
                f"choose one of {known}",
                limit=known,
                actual=name,
            )


def _bad_alias(message: str, *, actual: str, limit: str | None = None) -> InvalidInput:
    return InvalidInput(message, code="invalid_alias", param="aliases", limit=limit, actual=actual)
