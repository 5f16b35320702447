"""Every claim is checked, and its verdict must not change."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch import Generator

from engine.async_engine import AsyncEngine
from engine.claims.check import (
    CLAIMS,
    MAX_TOKENS,
    check_claims,
    claim_rows,
    document_start,
    find_claims,
    sample_heads,
)
from engine.claims.claim import (
    Claim,
    ClaimRow,
    Evidence,
    Finding,
    Material,
    Measured,
    Repair,
    Replacement,
    row_of,
)
from engine.claims.page import claims_page
from engine.claims.printed import printed_claims
from engine.errors import InvalidInput, TextTooLong
from engine.model.embedding_model import EmbeddingModel

pytestmark = pytest.mark.long

VERDICTS = {
    "natural-attention.definition-1": "definition",
    "natural-attention.lemma-2": "definition",
    "natural-attention.theorem-3": "holds",
    "natural-attention.theorem-4": "fails",
    "natural-attention.conjecture-5": "holds_corrected",
    "natural-attention.theorem-7": "fails",
    "natural-attention.conjecture-8": "fails",
    "natural-attention.lemma-10": "fails",
    "natural-attention.lemma-11": "fails",
    "natural-attention.theorem-12": "fails",
    "natural-attention.lemma-13": "fails",
    "natural-attention.theorem-14": "fails",
    "rank-collapse.theorem-2.1": "holds_corrected",
    "rank-collapse.definition-2.1-norm": "fails",
    "rank-collapse.definition-2.1-residual": "holds",
    "rank-collapse.theorem-2.2": "open",
    "rank-collapse.theorem-2.2-limit": "holds_corrected",
    "rank-collapse.equation-9": "fails",
    "rank-collapse.theorem-2.3": "fails",
    "rank-collapse.section-2.3-remark": "fails",
    "natural-gradient.theorem-1": "fails",
    "natural-gradient.theorem-2": "fails",
    "natural-gradient.theorem-3": "fails",
    "natural-gradient.theorem-4": "fails",
    "natural-gradient.section-3.2": "fails",
    "natural-gradient.fa-adam": "fails",
    "natural-gradient.section-8": "fails",
    "attention-fisher.definition-1": "definition",
    "attention-fisher.lemma-1": "holds",
    "attention-fisher.theorem-1": "holds",
    "attention-fisher.lemma-2": "fails",
    "attention-fisher.proposition-1": "fails",
    "attention-fisher.remark-1": "fails",
    "attention-fisher.theorem-2": "holds_corrected",
    "attention-fisher.definition-2.3": "fails",
    "attention-fisher.theorem-3": "open",
    "attention-fisher.theorem-4": "fails",
    "attention-fisher.proposition-2": "fails",
    "attention-fisher.section-c4": "holds_corrected",
    "attention-fisher.section-c5": "fails",
    "lln.equations-1-4-7-12-20": "definition",
    "lln.equation-5": "holds_corrected",
    "lln.proposition-3.1": "holds_corrected",
    "lln.lemma-a1": "holds",
    "lln.lemma-a2": "holds",
    "lln.lemma-a4": "holds",
    "lln.theorem-3.2": "holds",
    "lln.theorem-3.3": "fails",
    "lln.theorem-3.4": "holds",
    "lln.section-3.2.2": "fails",
    "lln.proposition-4.1": "holds_corrected",
    "lln.equation-28": "holds",
    "lln.equation-29": "fails",
    "lln.equation-32": "fails",
    "lln.equation-10": "holds",
    "lln.equation-11": "holds_corrected",
    "lln.section-a7-range": "fails",
    "lln.section-a7-variance": "holds_corrected",
    "lln.section-4.1-kernels": "holds",
    "lln.figure-2": "holds_corrected",
    "lln.table-1": "holds_corrected",
    "lln.table-2-memory": "fails",
    "lln.table-2-speed": "holds",
    "factor-form.factors": "holds",
    "factor-form.spectrum": "holds",
    "factor-form.stationary-law": "holds",
    "factor-form.singular-values": "holds",
    "factor-form.frobenius-norm": "holds",
    "factor-form.row-collision": "holds",
    "factor-form.entropy-bracket": "holds",
    "factor-form.information": "holds",
    "factor-form.rectangles": "holds",
    "factor-form.mean-distance": "holds",
    "factor-form.merging": "holds",
    "factor-form.half-eigenvalue": "holds",
    "factor-form.mixed-entropy": "holds",
}

PAGE = Path(__file__).resolve().parents[3] / "docs" / "claims.md"


@pytest.fixture(scope="module")
def engine_rows(default_model: EmbeddingModel) -> list[ClaimRow]:
    """As the service computes them: on a document's heads, in a subprocess."""

    async def check() -> list[ClaimRow]:
        async with AsyncEngine([default_model]) as engine:
            return await check_claims(engine, text=document_start())

    return asyncio.run(check())


@pytest.fixture(scope="module")
def evidence(engine_rows: list[ClaimRow]) -> Mapping[str, Evidence]:
    return {row.id: row.evidence for row in engine_rows}


def test_verdicts(engine_rows: list[ClaimRow]) -> None:
    assert {row.id: row.verdict for row in engine_rows} == VERDICTS


def test_corrections_were_measured_to_be_true(engine_rows: list[ClaimRow]) -> None:
    """Each claim that fails has a true statement in its place, or a repair."""
    for row in engine_rows:
        assert (row.corrected is not None) == (row.verdict in ("fails", "holds_corrected")), row.id
        assert row.margin is not None, row.id
        assert row.margin >= 0, row.id


def test_every_verdict_says_what_it_rests_on(engine_rows: list[ClaimRow]) -> None:
    for row in engine_rows:
        assert row.reading, row.id
        assert row.flips, row.id
        is_ours = row.id.startswith("factor-form.")
        assert (row.printed is None) == (row.place is None) == is_ours, row.id
    assert set(printed_claims()) <= {row.id for row in engine_rows}


def test_not_refuted_is_not_holding() -> None:
    claim = replace(_claim(), is_unproved=True)
    assert row_of(claim, Finding(stated=TRUE, evidence={}), 0.0).verdict == "open"
    assert row_of(claim, Finding(stated=FALSE, evidence={}), 0.0).verdict == "fails"


def test_rows_are_json_without_nan(engine_rows: list[ClaimRow]) -> None:
    document = json.dumps([asdict(row) for row in engine_rows], allow_nan=False)
    assert json.loads(document)[0]["id"] == "natural-attention.definition-1"


def test_page_is_current(engine_rows: list[ClaimRow]) -> None:
    assert PAGE.read_text() == claims_page(engine_rows), "run: lln claims --markdown"


def test_document_heads_were_checked(evidence: Mapping[str, Evidence]) -> None:
    assert evidence["factor-form.factors"]["document_heads"] == 6
    ratios = evidence["lln.equation-5"]["claimed_over_true_document_heads"]
    assert isinstance(ratios, list)
    assert len(ratios) == 6


@pytest.mark.parametrize(
    ("claim", "key", "expected"),
    [
        ("natural-attention.theorem-7", "information_nats", math.log(50)),
        ("natural-attention.theorem-12", "ratio", 0.6702),
        ("natural-attention.theorem-12", "claimed_ratio", 2.479e-6),
        ("rank-collapse.definition-2.1-norm", "norm_of_A_plus_B", 5.0),
        ("attention-fisher.definition-2.3", "null_directions", 4),
        ("lln.theorem-3.3", "sigma_max_squared", 4 / 3),
        ("lln.equation-11", "imaginary_below", 2.3889),
    ],
)
def test_counterexamples(
    evidence: Mapping[str, Evidence], claim: str, key: str, expected: float
) -> None:
    assert evidence[claim][key] == pytest.approx(expected, rel=1e-3)


def test_spectral_gap_falls_and_rises_again(evidence: Mapping[str, Evidence]) -> None:
    gaps = evidence["lln.section-3.2.2"]["spectral_gaps"]
    assert gaps == pytest.approx([0.529, 0.446, 0.937], abs=1e-3)


def test_a_claim_alone_gives_the_same_result(evidence: Mapping[str, Evidence]) -> None:
    """Its random numbers are its own."""
    [row] = claim_rows(find_claims(["lln.equation-29"]), Material())
    for part in ("stated", "corrected"):
        alone, among_all = row.evidence[part], evidence["lln.equation-29"][part]
        assert isinstance(alone, Mapping)
        assert isinstance(among_all, Mapping)
        assert alone["worst_excess"] == pytest.approx(among_all["worst_excess"], rel=1e-6)


def test_claims_need_no_document() -> None:
    """Claims that use heads have the same verdict on random matrices alone."""
    chosen = find_claims(["lln.equation-5", "lln.proposition-3.1", "lln.theorem-3.3"])
    for row in claim_rows(chosen, Material()):
        assert row.verdict == VERDICTS[row.id]


def test_claims_of_one_paper() -> None:
    found = find_claims(["factor-form", "lln.table-1"])
    assert {claim.id.split(".")[0] for claim in found} == {"factor-form", "lln"}
    assert [claim.id for claim in found if claim.id.startswith("lln")] == ["lln.table-1"]


@pytest.mark.parametrize("name", ["", "lln.", "lln.theorem-99", "factor"])
def test_unknown_claim(name: str) -> None:
    with pytest.raises(InvalidInput, match="unknown claim") as caught:
        find_claims([name])
    assert (caught.value.code, caught.value.param) == ("unknown_claim", "only")


def _claim(correction: Repair | Replacement | None = None, *, definition: bool = False) -> Claim:
    def check(material: Material, generator: Generator) -> Finding:
        raise AssertionError("these tests bring findings of their own")

    return Claim(
        id="a.b",
        paper="A",
        statement="x",
        check=check,
        correction=correction,
        is_definition=definition,
    )


TRUE, FALSE = Measured(worst=0.0), Measured(worst=1.0)


@pytest.mark.parametrize(
    ("claim", "stated", "corrected", "verdict"),
    [
        (_claim(), TRUE, None, "holds"),
        (_claim(definition=True), TRUE, None, "definition"),
        (_claim(definition=True), FALSE, None, "fails"),
        (_claim(), FALSE, None, "fails"),
        (_claim(), Measured(worst=math.nan), None, "fails"),
        (_claim(Repair(text="y")), FALSE, TRUE, "holds_corrected"),
        (_claim(Repair(text="y")), FALSE, FALSE, "fails"),
        (_claim(Repair(text="y")), TRUE, TRUE, "holds"),
        (_claim(Replacement(text="y")), FALSE, TRUE, "fails"),
    ],
)
def test_rule(claim: Claim, stated: Measured, corrected: Measured | None, verdict: str) -> None:
    row = row_of(claim, Finding(stated=stated, corrected=corrected, evidence={}), 0.1)
    assert row.verdict == verdict
    is_true = corrected is not None and corrected.holds
    assert row.corrected == (claim.correction.text if claim.correction and is_true else None)


def test_ids_are_unique_and_readable() -> None:
    ids = [claim.id for claim in CLAIMS]
    assert len(set(ids)) == len(ids)
    assert all(name == name.lower() and " " not in name for name in ids)


def test_a_long_document_is_read_from_its_beginning(
    default_model: EmbeddingModel, long_text: str
) -> None:
    async def sample() -> tuple[int, int]:
        async with AsyncEngine([default_model]) as engine:
            few = await sample_heads(engine, long_text[:60_000])
            every = await sample_heads(engine, "A short text.", every_head=True)
            assert {len(head.q) for head in few} == {MAX_TOKENS}
            assert few[0].q.dtype == torch.float64
            return len(few), len(every)

    assert asyncio.run(sample()) == (6, 72)


def test_a_text_over_the_limit_never_reaches_the_device(
    default_model: EmbeddingModel, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller gets a typed error; the log of the device says nothing of a failure."""
    short_sighted = replace(default_model, info=replace(default_model.info, max_tokens=1_000))
    words = "word " * 1_010

    async def sample() -> None:
        async with AsyncEngine([short_sighted]) as engine:
            with pytest.raises(TextTooLong):
                await sample_heads(engine, words)

    asyncio.run(sample())
    assert "failed" not in caplog.text


def test_cancelling_ends_the_subprocess(default_model: EmbeddingModel) -> None:
    async def leave() -> int:
        rows: list[ClaimRow] = []
        async with AsyncEngine([default_model]) as engine:
            work = asyncio.create_task(check_claims(engine, progress=rows.append))
            while not rows:
                await asyncio.sleep(0.01)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        return len(rows)

    assert 0 < asyncio.run(leave()) < len(CLAIMS)


def test_a_margin_is_of_the_true_statement() -> None:
    finding = Finding(stated=FALSE, corrected=Measured(worst=0.25, allowed=1), evidence={})
    row = row_of(_claim(Replacement(text="y")), finding, 0.0)
    assert row.margin == 0.75
