"""What a claim is, what checking it gives, and the rule that turns numbers into a verdict."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Verdict: TypeAlias = Literal["holds", "fails", "holds_corrected", "definition"]
Evidence: TypeAlias = Mapping[str, "EvidenceValue"]
EvidenceValue: TypeAlias = "float | int | str | bool | Sequence[EvidenceValue] | Evidence"

ROUNDING = 1e-9
"""What float64 may leave of an identity over a few thousand terms of order one."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A statement put to the test, as one number: how far from true it is on the worst case tried.

    For an equation that is the largest error; for lhs <= rhs it is the largest lhs - rhs, which is
    negative where the statement has room to spare.
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
    """What a check measured. Filled by the claim's own function."""

    stated: Measured
    corrected: Measured | None = None
    evidence: Evidence


@dataclass(frozen=True, kw_only=True)
class Repair:
    """The claim's own conclusion, with what it lacks: a hypothesis, a constant, an order."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """Another statement, true in the claim's place."""

    text: str


@dataclass(frozen=True, kw_only=True)
class HeadSample:
    """One head of a real model reading a real document."""

    layer: int
    head: int
    q: Tensor  # [N, D] float64
    k: Tensor  # [N, D] float64


@dataclass(frozen=True, kw_only=True)
class Material:
    """What claims are checked on: random matrices always, a document's heads where there are."""

    heads: tuple[HeadSample, ...] = ()
    thorough: bool = False

    def generator(self, claim_id: str) -> torch.Generator:
        """Each claim's own random numbers, so that checking one alone gives what all give."""
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
    remark: str | None = None  # what a reader of the verdict should know
    is_definition: bool = False


@dataclass(frozen=True, kw_only=True)
class ClaimRow:
    """One checked claim, as front ends show it."""

    id: str
    paper: str
    statement: str
    verdict: Verdict
    remark: str | None
    corrected: str | None  # only if it was measured to be true
    margin: float | None  # what the true statement had to spare on its worst case
    evidence: Evidence
    seconds: float


def verdict_of(claim: Claim, finding: Finding) -> Verdict:
    """What holds as stated holds. What does not fails, unless a repair of it holds."""
    if finding.stated.holds:
        return "definition" if claim.is_definition else "holds"
    return "holds_corrected" if _is_repaired(claim, finding) else "fails"


def row_of(claim: Claim, finding: Finding, seconds: float) -> ClaimRow:
    verdict = verdict_of(claim, finding)
    true = finding.stated if finding.stated.holds else finding.corrected
    is_corrected = finding.corrected is not None and finding.corrected.holds
    return ClaimRow(
        id=claim.id,
        paper=claim.paper,
        statement=claim.statement,
        verdict=verdict,
        remark=claim.remark,
        corrected=claim.correction.text if claim.correction and is_corrected else None,
        margin=true.margin if true is not None and true.holds else None,
        evidence=dict(finding.evidence)
        | {"stated": _as_evidence(finding.stated)}
        | ({"corrected": _as_evidence(finding.corrected)} if finding.corrected else {}),
        seconds=seconds,
    )


def _is_repaired(claim: Claim, finding: Finding) -> bool:
    corrected = finding.corrected
    return isinstance(claim.correction, Repair) and corrected is not None and corrected.holds


def _as_evidence(measured: Measured) -> Evidence:
    return {
        "worst_excess": measured.worst,
        "allowed": measured.allowed,
        "cases": measured.cases,
        "holds": measured.holds,
    }
