"""What kind a head is: whether it attends evenly, and to what it attends beyond that.

Every row of attention is divided into eight shares that sum to 1. Even attention gives every key
1 / N. What a row has in common with it, sum_j min(P_ij, 1 / N), is its diffuse share (1 less the
total variation between the two). The excess, P_ij - 1 / N where it is positive, counts by its key,
each key once, for the first of these that fits:

- sinks: a special token, such as [CLS] or [SEP];
- previous, next, self: the token before, the token after, the token itself;
- delimiters: a token of nothing but punctuation;
- local: a token at most LOCAL_TOKENS away;
- content: any other token; LLN's topics and far links by meaning end here.

Shares are comparable with each other and between texts, since chance is taken out: even attention
has a diffuse share of 1 and none of the others, however many delimiters a text has and however
short it is. A head's shares are the means over its rows. It is named after the largest, if that is
at least NAMED_SHARE, a third, else it is mixed. The value is that largest share.

Every row costs its dense length. Long texts are read by a sample of rows, in linear time for every
kind of attention.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from engine.diagnostics.head_group import HeadGroup
from engine.diagnostics.instrument import Instrument
from engine.diagnostics.quantiles import quantiles_over_rows
from engine.diagnostics.readings import Quantity, Reading, error_floats, floats
from engine.diagnostics.rows import row_tiles
from engine.diagnostics.sampling import Estimate, choose_rows, mean_of
from engine.steps import Steps

KINDS: Final = ("diffuse", "sinks", "previous", "next", "self", "delimiters", "local", "content")
MIXED: Final = "mixed"

LOCAL_TOKENS = 8
NAMED_SHARE = 1 / 3
"""At most three of a row's shares can be as large."""

RARE_DISTANCE = 0.2
"""How far a row that was not read may be from the mean of a sample whose rows are alike."""

WORD, SPECIAL, DELIMITER = 0, 1, 2
"""What a token is, in the view's `token_kinds`."""

_EXCESS = {kind: index for index, kind in enumerate(KINDS[1:])}


def measure_head_kind(heads: HeadGroup) -> Steps[Reading]:
    count = heads.effort.num_rows(heads.num_tokens)
    rows = choose_rows(heads.view, count, heads.effort.seed)
    shares = yield from _shares(heads, rows)
    means = [_mean_share(share, heads.num_tokens) for share in shares]
    values = torch.stack([mean.values for mean in means])  # [kinds, H]
    largest = values.max(0)
    every_head = torch.arange(heads.num_heads, device=rows.device)
    errors = [mean.error for mean in means if mean.error is not None]
    error = torch.stack(errors)[largest.indices, every_head] if errors else None
    of_largest = shares[largest.indices, every_head]
    is_whole = count == heads.num_tokens
    return Reading(
        values=floats(largest.values),
        error=error_floats(error),
        method="exact: every row" if is_whole else f"sampled: {count} rows; standard error",
        unit=HEAD_KIND.unit,
        cost="N^2 D" if is_whole else f"{count} N D",
        beside={
            kind: Quantity(
                values=floats(mean.values), unit=HEAD_KIND.unit, error=error_floats(mean.error)
            )
            for kind, mean in zip(KINDS, means, strict=True)
        }
        | quantiles_over_rows(heads, of_largest, HEAD_KIND.unit),
        labels=tuple(
            KINDS[index] if share >= NAMED_SHARE else MIXED
            for share, index in zip(*(part.tolist() for part in largest), strict=True)
        ),
    )


def _mean_share(per_row: Tensor, population: int) -> Estimate:
    """The mean over all rows. A few rows may be unlike all others, and a sample without them would
    state an error of nearly 0. So the error also covers what one such row would change."""
    found = mean_of(per_row, population, limits=(0.0, 1.0))
    if found.error is None:
        return found
    count = per_row.shape[1]
    missed = torch.full_like(found.error, RARE_DISTANCE / count * (1 - count / population) ** 0.5)
    return Estimate(found.values, torch.hypot(found.error, missed))


def _shares(heads: HeadGroup, rows: Tensor) -> Steps[Tensor]:
    """The shares of every row, in the order of KINDS: [kinds, H, rows]."""
    assert heads.view.token_kinds is not None, "listed in needs"
    reader = yield from heads.row_reader()
    even = 1 / heads.num_tokens
    found = []
    for tile in row_tiles(heads.view, len(rows)):
        matrix = reader.full(rows[tile])  # [H, rows, N]
        excess = (matrix - even).clamp_min_(0.0).transpose(0, 1)  # [rows, H, N]
        places = one_hot(_excess_of(rows[tile], heads.view.token_kinds), len(_EXCESS))
        by_kind = torch.bmm(excess, places.to(excess)).double()  # [rows, H, kinds - 1]
        diffuse = (1 - by_kind.sum(-1, keepdim=True)).clamp_min(0.0)
        found.append(torch.cat([diffuse, by_kind], dim=-1))
        yield
    return torch.cat(found).permute(2, 1, 0)


def _excess_of(rows: Tensor, token_kinds: Tensor) -> Tensor:
    """Which kind each key of these rows counts for: [rows, N], in the order of KINDS[1:]."""
    tokens = torch.arange(len(token_kinds), device=rows.device)
    offset = tokens - rows.unsqueeze(1)
    kinds = torch.full_like(offset, _EXCESS["content"])
    kinds[offset.abs() <= LOCAL_TOKENS] = _EXCESS["local"]
    kinds[:, token_kinds == DELIMITER] = _EXCESS["delimiters"]
    for kind, distance in (("self", 0), ("previous", -1), ("next", 1)):
        kinds[offset == distance] = _EXCESS[kind]
    kinds[:, token_kinds == SPECIAL] = _EXCESS["sinks"]
    return kinds


HEAD_KIND = Instrument(
    name="head_kind",
    unit="share",
    description="what a head attends to beyond even attention: sinks (special tokens), the "
    "previous or next token, the token itself, delimiters (punctuation), local words (at most "
    f"{LOCAL_TOKENS} tokens away), content (farther words), or nothing (diffuse). A head is named "
    "after its largest share if that is a third or more, else mixed; the value is that share. "
    "Beside: all shares, which sum to 1.",
    measure=measure_head_kind,
    needs=("token_kinds",),
)
