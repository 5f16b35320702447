"""The mean entropy of a head's attention rows, H = -(1/N) sum_ij P_ij log P_ij, in nats.

The LLN paper's eq. 7 in natural units (divide by log 2 for its bits): 0 when every token attends to
one token, log N when all attend evenly. Exact row by row, in tiles; block-diagonal rows are short,
so that kind is linear. For the others the cost is N x N, so beyond `Effort.max_exact_tokens` the
mean is taken over rows drawn without replacement, and the error is its standard error.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.diagnostics.base import Effort, HeadView, Instrument, Reading
from engine.diagnostics.rows import HeadRows, block_runs, head_groups, row_tiles

_SMALLEST = torch.finfo(torch.float64).tiny


def measure_entropy(view: HeadView, effort: Effort) -> Reading:
    """The mean row entropy of every head."""
    rows = _rows_to_read(view, effort)
    per_row = _row_entropies(view, rows)
    sampled = len(rows) < view.num_tokens
    error = _standard_error(per_row, view.num_tokens) if sampled else None
    method = f"sampled: {len(rows)} rows, standard error" if sampled else "exact: every row"
    return Reading(
        values=per_row.mean(1).cpu().numpy(),
        error=None if error is None else error.cpu().numpy(),
        method=method,
        unit=ENTROPY.unit,
    )


def num_rows_to_read(view: HeadView, effort: Effort) -> int:
    """All rows, or as many as cost what the longest exact text costs."""
    length = view.num_tokens
    if view.attention == "block_diagonal" or length <= effort.max_exact_tokens:
        return length
    affordable = effort.max_exact_tokens**2 // length
    return min(length, max(affordable, effort.min_sampled_rows, 2))


def _rows_to_read(view: HeadView, effort: Effort) -> Tensor:
    count = num_rows_to_read(view, effort)
    if count == view.num_tokens:
        return torch.arange(count, device=view.q.device)
    generator = torch.Generator().manual_seed(effort.seed)
    chosen = torch.randperm(view.num_tokens, generator=generator)[:count]
    return chosen.sort().values.to(view.q.device)


def _row_entropies(view: HeadView, rows: Tensor) -> Tensor:
    """The entropy of every head's rows: [H, rows]."""
    entropies = torch.full(
        (view.num_heads, len(rows)), math.nan, dtype=torch.float64, device=view.q.device
    )
    for heads in head_groups(view):
        group = HeadRows(view.only(heads))
        for tile in row_tiles(group.view, len(rows)):
            entropies[heads[0] : heads[-1] + 1, tile] = _tile_entropies(group, rows[tile])
    return entropies


def _tile_entropies(group: HeadRows, rows: Tensor) -> Tensor:
    """[H, rows]."""
    match group.view.attention:
        case "softmax":
            return entropy_of_scores(group.scores(rows))
        case "block_diagonal":
            return _entropies_within_blocks(group, rows)
        case "lln":
            return entropy_of_probabilities(group.lln(rows))
        case "lln_diag":
            return entropy_of_probabilities(group.lln_diag(rows))


def _entropies_within_blocks(group: HeadRows, rows: Tensor) -> Tensor:
    parts = [
        entropy_of_scores(group.scores(rows[run.positions], group.view.visible_keys(run.block)))
        for run in block_runs(group.view, rows)
    ]
    return torch.cat(parts, dim=1)


def entropy_of_scores(scores: Tensor) -> Tensor:
    """log Z - mean score, both from the row's maximum: two terms >= 0. Overwrites the scores."""
    scores -= scores.amax(-1, keepdim=True)
    weights = scores.exp()
    mass = weights.sum(-1)
    mean_score: Tensor = torch.linalg.vecdot(weights, scores) / mass
    return mass.log() - mean_score


def entropy_of_probabilities(probabilities: Tensor) -> Tensor:
    """-sum p log p, where 0 log 0 is 0; rounding may take a one-hot row below 0, so it is held."""
    logs = probabilities.clamp_min(_SMALLEST).log_()
    negative: Tensor = torch.linalg.vecdot(probabilities, logs)
    return negative.clamp_max(0.0).abs()


def _standard_error(per_row: Tensor, population: int) -> Tensor:
    """Of a mean over rows drawn without replacement: [H]."""
    count = per_row.shape[1]
    unseen = 1 - count / population
    return per_row.std(1) * math.sqrt(unseen / count)


ENTROPY = Instrument(
    name="entropy",
    unit="nats",
    description="mean entropy of the attention rows; 0 is one token, log N is all tokens evenly",
    measure=measure_entropy,
)
