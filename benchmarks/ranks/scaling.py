"""What ranks would take on machines that were not measured: a model fitted to what was.

`tools/write_docs.py` writes these tables into docs/scaling.md. Everything that is assumed and not
measured stands in `ASSUMED`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

LAYERS, WIDTH, HEADS, HEAD_DIM, BLOCK = 6, 384, 12, 32, 256
"""The default model, in texts over 4,096 tokens."""

FLOP_PER_TOKEN = LAYERS * (2 * 12 * WIDTH**2 + 4 * BLOCK * WIDTH + 8 * WIDTH * HEAD_DIM)
"""Matrix products, softmax within blocks, and LLN's state and its reading."""

WIRE_BYTES = 4 + 8 * WIDTH / 256
"""Bytes a token that travel once: its id, and its part of a chunk of 256 tokens in float64."""

STATE_BYTES = 4 * HEADS * (HEAD_DIM + HEAD_DIM**2)


class Assumption(NamedTuple):
    what: str
    value: float
    shown: str
    because: str


ASSUMED: Mapping[str, Assumption] = {
    "peak": Assumption(
        "arithmetic of one H200", 989e12, "989 TFLOP/s", "NVIDIA's figure for dense bfloat16"
    ),
    "low": Assumption(
        "share of it that the model reaches, low", 0.05, "5 %", "a guess: the model is 384 wide"
    ),
    "high": Assumption("the same, high", 0.20, "20 %", "a guess; no GPU was measured"),
    "memory": Assumption("memory of one H200", 141e9, "141 GB", "NVIDIA's figure"),
    "step": Assumption(
        "one step of an exchange between machines", 1e-4, "0.1 ms", "a guess for TCP over 100 Gb/s"
    ),
    "link": Assumption("speed between machines", 10e9, "10 GB/s", "100 Gb/s at four fifths"),
    "cores": Assumption(
        "cores beside each H200, all of which tokenise", 16, "16", "usual machines have as many"
    ),
    "gpus": Assumption("H200 of a machine", 8, "8", "usual; rank 0's machine tokenises"),
    "tokens": Assumption("tokens of a document of the corpus", 1_000, "1,000", "two pages"),
    "price": Assumption("price of an H200 hour", 4.0, "$4", "a guess; put in your own"),
}


def assumed(name: str) -> float:
    return ASSUMED[name].value


@dataclass(frozen=True)
class ExchangeModel:
    """Seconds of one exchange: so much for each step of the ring, and so much for each byte."""

    step_s: float
    byte_s: float

    def seconds(self, ranks: int, bytes_each: int, cores: int | None = None) -> float:
        """With fewer cores than ranks, a core takes the steps of several."""
        crowded = 1.0 if cores is None else max(1.0, ranks / cores)
        return crowded * (ranks - 1) * (self.step_s + self.byte_s * bytes_each)


def fit(content: Mapping[str, Any]) -> ExchangeModel:
    """Least squares over the relative errors of the medians."""
    rows, cores = content["rows"], content["machine"]["cores"]
    seconds = np.array([median(row["seconds"]) for row in rows])
    steps = np.array([ExchangeModel(1.0, 0.0).seconds(row["ranks"], 0, cores) for row in rows])
    sizes = np.array([row["bytes_each"] for row in rows], dtype=float)
    design = np.stack([steps, steps * sizes], axis=1) / seconds[:, None]
    (step_s, byte_s), *_ = np.linalg.lstsq(design, np.ones(len(rows)), rcond=None)
    return ExchangeModel(float(step_s), float(byte_s))


def fit_sentence(content: Mapping[str, Any]) -> str:
    model, rows, cores = fit(content), content["rows"], content["machine"]["cores"]
    errors = [
        abs(model.seconds(row["ranks"], row["bytes_each"], cores) / median(row["seconds"]) - 1)
        for row in rows
    ]
    return (
        f"Fitted: {model.step_s * 1e3:.2f} ms for a step of the ring and {model.byte_s * 1e9:.2f} "
        f"ns for a byte, with ranks - 1 steps, and times ranks / cores where there are fewer cores "
        f"({cores} here). Half of the medians are within {median(errors):.0%} of it, the worst is "
        f"{max(errors):.0%} off."
    )


def read_exchanges(results: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((results / "ranks" / "exchanges.json").read_text())
    return content


Cells = Iterator[Sequence[str]]

EXCHANGE_HEAD = ("ranks", "bytes of a rank's part", "bytes written for it", "median", "predicted")


def exchange_rows(content: Mapping[str, Any]) -> Cells:
    """Measured exchanges beside what the model makes of them."""
    model = fit(content)
    for row in content["rows"]:
        predicted = model.seconds(row["ranks"], row["bytes_each"], content["machine"]["cores"])
        yield (
            str(row["ranks"]),
            f"{row['bytes_each']:,}",
            f"{row['wire_bytes']:,.0f}",
            _time(median(row["seconds"])),
            _time(predicted),
        )


ASSUMED_HEAD = ("assumed", "value", "why")


def assumed_rows(content: Mapping[str, Any]) -> Cells:
    """What is assumed, and what besides the exchanges goes into the model."""
    for one in ASSUMED.values():
        yield one.what, one.shown, one.because
    yield "arithmetic of a token", f"{FLOP_PER_TOKEN / 1e6:.1f} MFLOP", "counted from the layers"
    speed = content["tokens_per_second"]
    yield "tokenising, a core", f"{speed:,.0f} tokens/s", "measured here, not assumed"


DOCUMENT_HEAD = (
    *("tokens", "H200", "reading (assumed speed)", "exchanges (assumed step)"),
    *(
        "exchanges (step measured here)",
        "ids out, chunks back",
        "tokenising (a core's speed measured)",
    ),
    "memory of a rank",
)


def document_rows(content: Mapping[str, Any]) -> Cells:
    """One long document."""
    model = fit(content)
    for tokens in (10_000_000, 100_000_000):
        for ranks in (1, 8, 64):
            low, high = (
                tokens * FLOP_PER_TOKEN / (ranks * assumed("peak") * assumed(share))
                for share in ("low", "high")
            )
            cores = assumed("cores") * min(ranks, assumed("gpus"))
            steps = LAYERS * (ranks - 1)
            apart = steps * (assumed("step") + STATE_BYTES / assumed("link"))
            here = LAYERS * model.seconds(ranks, STATE_BYTES)
            yield (
                f"{tokens:,}",
                str(ranks),
                f"{_time(high)} to {_time(low)}",
                _time(apart) if ranks > 1 else "none",
                _time(here) if ranks > 1 else "none",
                _time(tokens * WIRE_BYTES / assumed("link")) if ranks > 1 else "none",
                _time(tokens / (content["tokens_per_second"] * cores)),
                f"{rank_bytes(tokens, ranks) / 1e9:,.1f} GB",
            )


def rank_bytes(tokens: int, ranks: int) -> float:
    """Hidden states and projections in float32, as the tiled pass holds them between its visits."""
    return 4 * 4 * WIDTH * tokens / ranks


CORPUS_HEAD = (
    *("H200", "tokens/s of the GPUs (assumed)", "tokens/s of the tokenisers", "hours", "dollars"),
    *("dollars a million tokens", "bottleneck"),
)


def corpus_rows(content: Mapping[str, Any]) -> Cells:
    """A corpus of 10^9 documents, one engine for each GPU."""
    tokens = 1e9 * assumed("tokens")
    for gpus in (8, 64):
        tokenisers = gpus * assumed("cores") * content["tokens_per_second"]
        for share in ("low", "high"):
            reading = gpus * assumed("peak") * assumed(share) / FLOP_PER_TOKEN
            hours = tokens / min(reading, tokenisers) / 3600
            dollars = hours * gpus * assumed("price")
            yield (
                str(gpus),
                f"{reading / 1e6:,.1f} million",
                f"{tokenisers / 1e6:,.1f} million",
                f"{hours:,.1f}",
                f"{dollars:,.0f}",
                f"{dollars / tokens * 1e6:.4f}",
                "GPUs" if reading < tokenisers else "tokenising",
            )


SCHEDULE_HEAD = (
    *("workers", "parts for each", "largest part", "slow workers' speed", "makespan / bound"),
    "work done again",
)


def schedule_rows(results: Path) -> Cells:
    for row in json.loads((results / "ranks" / "schedule.json").read_text())["rows"]:
        yield (
            f"{row['workers']:,}",
            f"{row['parts_each']:.0f}",
            f"{row['largest_part']:.0f} parts",
            f"{row['slow_speed']:g}",
            f"{row['over_bound']:.3f}",
            f"{row['repeated_share']:.1%}",
        )


def _time(seconds: float) -> str:
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= size or unit == "ms":
            return f"{seconds / size:,.3g} {unit}"
    raise AssertionError("the smallest unit takes the rest")
