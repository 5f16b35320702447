"""The checked claims as a page of Markdown: docs/claims.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from engine.claims.claim import ROUNDING, ClaimRow, Verdict

_WORDS: dict[Verdict, str] = {
    "holds": "holds",
    "fails": "**fails**",
    "holds_corrected": "holds when corrected",
    "definition": "definition",
    "open": "open",
}

_INTRODUCTION = """\
# Claims, checked

Five papers make claims about attention, and this project rests on a few more. Each claim is \
checked here by computation: on random matrices with fixed seeds, and on the heads of a model that \
reads a document. `lln claims` runs all of them; `lln claims --json` adds the numbers and the \
counterexamples. `lln claims --markdown` wrote this page, and a test runs the claims again and \
compares.

- A claim **holds** if no case violates it by more than rounding, or by more than the error it \
allows where it says "approximately".
- It is **open** if no case violates it but no valid proof is known.
- It **holds when corrected** if its conclusion is true once a hypothesis, a constant or an order \
is added.
- It **fails** if it must be replaced by another statement.

"What is true" says what was measured to be true; that is not a proof. The last column has the \
paper's words ("..." where some are left out, formulas in plain text), our reading of them, and \
how large an excess still counts as true (none means rounding, 1e-9). `flips` in `lln claims` and \
over HTTP says what would change a verdict.

`(x)` is the Kronecker product, and `s` is a variance, as the statement says.
"""


def claims_page(rows: Sequence[ClaimRow]) -> str:
    """Verdicts and statements, without anything that differs between two runs."""
    return "\n".join([_INTRODUCTION, _counts(rows), *_tables(rows)]) + "\n"


def _counts(rows: Sequence[ClaimRow]) -> str:
    counts = Counter(row.verdict for row in rows)
    return (
        f"Of {len(rows)} claims, {counts['holds']} hold, {counts['fails']} fail, "
        f"{counts['holds_corrected']} hold when corrected, {counts['open']} are open, and "
        f"{counts['definition']} are definitions."
    )


def _tables(rows: Sequence[ClaimRow]) -> Iterator[str]:
    for paper, of_paper in groupby(rows, key=lambda row: row.paper):
        yield f"\n## {paper}\n"
        yield "| id | statement tested | verdict | what is true | as printed; how it is read |"
        yield "|---|---|---|---|---|"
        for row in of_paper:
            true = " ".join(filter(None, (row.corrected, row.remark)))
            cells = (f"`{row.id}`", row.statement, _WORDS[row.verdict], true, _source(row))
            yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _source(row: ClaimRow) -> str:
    source = f"{row.place}: {row.printed}." if row.printed else ""
    tolerance = "" if row.tolerance <= ROUNDING else f"Tolerance {row.tolerance:.3g}."
    return " ".join(filter(None, (source, f"Read: {row.reading}.", tolerance)))
