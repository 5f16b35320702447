"""A claim, the result of checking it, and the rule that turns numbers into a verdict."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from engine.claims.printed import find_printed, reading_of

Verdict: TypeAlias = Literal["holds", "fails", "holds_corrected", "definition", "open"]
Evidence: TypeAlias = Mapping[str, "EvidenceValue"]
EvidenceValue: TypeAlias = "float | int | str | bool | Sequence[EvidenceValue] | Evidence"

ROUNDING = 1e-9
"""The error that float64 may leave in an identity over a few thousand terms of order one."""

ANY_CONSTANT = 1e3
"""Stands for a constant that the paper leaves open: larger than any it could mean."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """How far from true a statement is, on the worst of the cases tried.

    For an equation, `worst` is the largest error. For lhs <= rhs it is the largest lhs - rhs, which
    is negative if the statement has room to spare.
    """

    worst: float
    allowed: float = ROUNDING
    cases: int = 1

    @property
    def holds(self) -> bool:
        return self.worst <= self.allowed  # NaN does not hold

    @property
    def margin(self) -> float:
        return self.allowed - self.worst


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a claim's own function measured."""

    stated: Measured
    corrected: Measured | None = None
    evidence: Evidence


@dataclass(frozen=True, kw_only=True)
class Repair:
    """The claim's own conclusion with what it lacks: a hypothesis, a constant or an order."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """Another statement, which is true in the claim's place."""

    text: str


@dataclass(frozen=True, kw_only=True)
class HeadSample:
    """Queries and keys of one head of a real model that reads a real document."""

    layer: int
    head: int
    q: Tensor  # [N, D] float64
    k: Tensor  # [N, D] float64


@dataclass(frozen=True, kw_only=True)
class Material:
    """What claims are checked on: random matrices, and a document's heads if there are any."""

    heads: tuple[HeadSample, ...] = ()
    thorough: bool = False

    def generator(self, claim_id: str) -> torch.Generator:
        """Random numbers of the claim's own: the result does not depend on the claims before it."""
        return torch.Generator().manual_seed(zlib.crc32(claim_id.encode()))

    def trials(self, quick: int) -> int:
        return 8 * quick if self.thorough else quick


@dataclass(frozen=True, kw_only=True)
class Claim:
    id: str
    paper: str
    statement: str
    check: Callable[[Material, torch.Generator], Finding]
    correction: Repair | Replacement | None = None
    remark: str | None = None  # what to know when reading the verdict
    is_definition: bool = False
    is_unproved: bool = False  # without a proof, a claim that no case broke stays open


@dataclass(frozen=True, kw_only=True)
class ClaimRow:
    """One checked claim, as the API and the command line show it."""

    id: str
    paper: str
    statement: str
    place: str | None  # where the paper prints it; None for statements of this project
    printed: str | None  # its words there, with formulas in plain text
    reading: str  # how that is taken here
    tolerance: float  # the excess that still counts as true
    flips: str  # what would change the verdict
    verdict: Verdict
    remark: str | None
    corrected: str | None  # only if the corrected statement was measured to be true
    margin: float | None  # what the true statement has to spare on its worst case
    evidence: Evidence
    seconds: float


def verdict_of(claim: Claim, finding: Finding) -> Verdict:
    """A claim that does not hold as stated fails, unless a repair of it holds."""
    if finding.stated.holds:
        if claim.is_definition:
            return "definition"
        return "open" if claim.is_unproved else "holds"
    is_corrected = finding.corrected is not None and finding.corrected.holds
    is_repaired = is_corrected and isinstance(claim.correction, Repair)
    return "holds_corrected" if is_repaired else "fails"


def _flips(verdict: Verdict, finding: Finding) -> str:
    allowed = f"{finding.stated.allowed:.3g}"
    match verdict:
        case "open":
            return f"a proof, or one case with an excess of more than {allowed}"
        case "holds" | "definition":
            return f"one case with an excess of more than {allowed}"
        case "holds_corrected":
            return (
                f"an excess of at most {allowed} as printed, or a case that breaks the correction"
            )
        case _:
            return f"an excess of at most {allowed} on the counterexample"


def row_of(claim: Claim, finding: Finding, seconds: float) -> ClaimRow:
    verdict = verdict_of(claim, finding)
    true = finding.stated if finding.stated.holds else finding.corrected
    is_corrected = finding.corrected is not None and finding.corrected.holds
    source = find_printed(claim.id)
    return ClaimRow(
        id=claim.id,
        paper=claim.paper,
        statement=claim.statement,
        place=source.place if source else None,
        printed=source.words if source else None,
        reading=reading_of(claim.id),
        tolerance=finding.stated.allowed,
        flips=_flips(verdict, finding),
        verdict=verdict,
        remark=claim.remark,
        corrected=claim.correction.text if claim.correction and is_corrected else None,
        margin=true.margin if true is not None and true.holds else None,
        evidence=dict(finding.evidence)
        | {"stated": _as_evidence(finding.stated)}
        | ({"corrected": _as_evidence(finding.corrected)} if finding.corrected else {}),
        seconds=seconds,
    )


def _as_evidence(measured: Measured) -> Evidence:
    return {
        "worst_excess": measured.worst,
        "allowed": measured.allowed,
        "cases": measured.cases,
        "holds": measured.holds,
    }
