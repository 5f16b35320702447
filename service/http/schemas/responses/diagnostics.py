"""Answers of the instruments, and of the claims they check."""

from __future__ import annotations

from typing import Any, Literal

from service.http.schemas.responses.base import AccountingValue, Answer, ErrorDetail


class InstrumentItem(Answer):
    name: str
    unit: str
    scope: Literal["head", "layer"]
    description: str


class InstrumentList(Answer):
    object: Literal["list"]
    data: list[InstrumentItem]


class BesideValue(Answer):
    """An additional quantity of an instrument: for each layer, a number or a list per head (one of
    each for an instrument of whole layers); null for a layer where it is not measured."""

    unit: str
    values: list[Any]
    error: list[Any] | None


class Reading(Answer):
    """One instrument: a value for each layer and head (one for each layer if its scope is the
    layer), its error if it is not exact, and what it names the head if it names heads."""

    unit: str
    scope: Literal["head", "layer"]
    method: str
    values: list[list[float]]
    error: list[list[float]] | None
    labels: list[list[str]] | None
    beside: dict[str, BesideValue]
    cost: str
    compute_s: float


class DiagnosticsAnswer(Answer):
    """`attention` is that of each layer as it was measured: LLN+Diag is block-diagonal in texts of
    one block. `rows_read` is how many rows of a head were read wherever a row costs as much as the
    text is long. `notes` say what to know before comparing the values with those of other texts."""

    object: Literal["diagnosis"]
    model: str
    tokens: int
    mode: Literal["auto", "exact", "sampled"]
    sampled_rows: int
    rows_read: int
    seed: int
    quantiles: list[float]
    layers: list[int]
    heads: list[int]
    attention: list[str]
    notes: list[str]
    instruments: dict[str, Reading]
    left_out: dict[str, str]
    accounting: AccountingValue


class ClaimItem(Answer):
    """One claim. `corrected` is a corrected statement that was measured to be true. `margin` is how
    much the true statement had to spare in its worst case."""

    id: str
    paper: str
    statement: str
    place: str | None
    printed: str | None
    reading: str
    tolerance: float
    flips: str
    verdict: Literal["holds", "fails", "holds_corrected", "definition", "open"]
    remark: str | None
    corrected: str | None
    margin: float | None
    evidence: dict[str, Any]
    seconds: float


class ClaimList(Answer):
    object: Literal["list"]
    state: Literal["not_started", "computing", "done", "failed"]
    checked: int
    total: int
    data: list[ClaimItem]
    error: ErrorDetail | None
