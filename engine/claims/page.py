"""The checked claims as a page of Markdown: docs/claims.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from engine.claims.claim import ClaimRow, Verdict

_WORDS: dict[Verdict, str] = {
    "holds": "holds",
    "fails": "**fails**",
    "holds_corrected": "holds when corrected",
    "definition": "definition",
}

_INTRODUCTION = """\
# Claims, checked

Five papers make claims about attention, and this project rests on a few more. Each one is checked \
here by a computation: on random matrices with fixed seeds, and on the heads of a model that reads \
a document. `lln claims` runs all of them; `lln claims --json` adds the numbers and the \
counterexamples. `lln claims --markdown` wrote this page, and a test runs the claims again and \
compares.

- A claim **holds** if no case broke it by more than rounding, or by more than the error it allows \
where it says "approximately".
- It **holds when corrected** if its conclusion is true once a hypothesis, a constant or an order \
is added.
- It **fails** if another statement must take its place.

The last column says what was measured to be true. A claim that nothing broke is not thereby \
proved. `(x)` is the Kronecker product, and `s` is a variance, as the statement says.
"""


def claims_page(rows: Sequence[ClaimRow]) -> str:
    """Verdicts and statements, without anything that differs between two runs."""
    return "\n".join([_INTRODUCTION, _counts(rows), *_tables(rows)]) + "\n"


def _counts(rows: Sequence[ClaimRow]) -> str:
    counts = Counter(row.verdict for row in rows)
    return (
        f"Of {len(rows)} claims, {counts['holds']} hold, {counts['fails']} fail, "
        f"{counts['holds_corrected']} hold when corrected, and {counts['definition']} are "
        "definitions."
    )


def _tables(rows: Sequence[ClaimRow]) -> Iterator[str]:
    for paper, of_paper in groupby(rows, key=lambda row: row.paper):
        yield f"\n## {paper}\n"
        yield "| id | statement | verdict | what is true |"
        yield "|---|---|---|---|"
        for row in of_paper:
            true = " ".join(filter(None, (row.corrected, row.remark)))
            cells = (f"`{row.id}`", row.statement, _WORDS[row.verdict], true)
            yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
