"""The checked claims as a page for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from engine.claims.base import ClaimRow, Verdict

_WORDS: dict[Verdict, str] = {
    "holds": "holds",
    "fails": "**fails**",
    "holds_corrected": "holds when corrected",
    "definition": "definition",
}

_HEAD = """\
# Claims, checked

What five papers claim of attention, and what this project builds on, each statement checked by a \
computation: `lln claims` runs them all, on random matrices with fixed seeds and on the heads of \
a model reading a document; `lln claims --json` shows the numbers and the counterexamples. This \
page is what `lln claims --markdown` printed, and a test runs the claims again and compares.

A claim *holds* if no case broke it beyond rounding (or beyond the error it allows where it says \
"approximately"). It *holds when corrected* if the conclusion stands once a hypothesis, a constant \
or an order is added, and *fails* if another statement has to take its place; the last column has \
what was measured to be true. That nothing was found to break a claim is no proof of it. \
`(x)` is the Kronecker product, `s` a variance as the statement says.
"""


def claims_page(rows: Sequence[ClaimRow]) -> str:
    """Verdicts and texts, without anything that varies from run to run."""
    return "\n".join([_HEAD, _counts(rows), *_tables(rows)]) + "\n"


def _counts(rows: Sequence[ClaimRow]) -> str:
    found = [f"{sum(row.verdict == verdict for row in rows)} {verdict}" for verdict in _WORDS]
    return f"{len(rows)} claims: {', '.join(found).replace('_', ' ')}."


def _tables(rows: Sequence[ClaimRow]) -> Iterator[str]:
    for paper, of_paper in groupby(rows, key=lambda row: row.paper):
        yield f"\n## {paper}\n"
        yield "| id | statement | verdict | what is true |"
        yield "|---|---|---|---|"
        for row in of_paper:
            said = " ".join(filter(None, (row.corrected, row.remark)))
            cells = (f"`{row.id}`", row.statement, _WORDS[row.verdict], said)
            yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
