"""The claims checked one after the other, each in a step of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

from engine.claims import (
    attention_fisher,
    factor_form,
    linear_model,
    natural_attention,
    natural_gradient,
    published_tables,
    rank_collapse,
    softmax_model,
)
from engine.claims.base import Claim, ClaimRow, Material, row_of
from engine.errors import InvalidInput, shown

CLAIMS: tuple[Claim, ...] = (
    *natural_attention.CLAIMS,
    *rank_collapse.CLAIMS,
    *natural_gradient.CLAIMS,
    *attention_fisher.CLAIMS,
    *softmax_model.CLAIMS,
    *linear_model.CLAIMS,
    *published_tables.CLAIMS,
    *factor_form.CLAIMS,
)


def find_claims(asked: Sequence[str] | None) -> tuple[Claim, ...]:
    """The claims of these ids, or of the papers whose ids begin so; all of them for None."""
    if asked is None:
        return CLAIMS
    for name in asked:
        if not any(_is_named(claim, name) for claim in CLAIMS):
            papers = ", ".join(dict.fromkeys(claim.id.split(".")[0] for claim in CLAIMS))
            raise InvalidInput(
                f"there is no claim {shown(name)!r}; ids begin with one of {papers}",
                code="unknown_claim",
                param="only",
                limit=papers,
                actual=name,
            )
    return tuple(claim for claim in CLAIMS if any(_is_named(claim, name) for name in asked))


def claim_rows(claims: Sequence[Claim], material: Material) -> Iterator[ClaimRow]:
    """Checks each claim when its row is asked for, so that other work can run in between."""
    for claim in claims:
        started_at = perf_counter()
        finding = claim.check(material, material.generator(claim.id))
        yield row_of(claim, finding, perf_counter() - started_at)


def _is_named(claim: Claim, name: str) -> bool:
    return claim.id == name or claim.id.startswith(f"{name}.")
