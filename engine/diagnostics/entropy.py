"""How much a head's attention rows tell: their entropy, their collisions, their mutual information.

Entropy. H = -(1/N) sum_ij P_ij log P_ij in nats: 0 if every token attends to one token, log N if
all attend evenly. The LLN paper's eq. 7 in bits is read beside.

- Block-diagonal: its rows are short: exact, linear.
- Softmax: exact where all rows are read; else the mean of a sample with its standard error,
  corrected by what explains how sharp a row looks, which is known of every row.
- LLN: the entropy of a mixture, sum_c pi_ic H(kappa_c) <= H(P_i) <= the same + H(pi_i), a bracket
  in linear time. Where rows are sampled, both parts of it are known of every row, and only what
  they do not explain has a sampling error.
- LLN+Diag: with p = m l + (1 - m) b in the block and p = m l beyond it,
  sum p log p = sum_block p log p + m log m sum_beyond l + m sum_beyond l log l. All but the last
  sum is exact and linear; the last is sampled, and bracketed as above with the channels beyond the
  block.

Collision. (1/N) sum_ij P_ij^2, how often two draws from a row agree. Exact and linear for every
kind but softmax. A few sharp rows of softmax may have most of it, and a sample that misses them
would state too small an error. So every row is estimated from the few longest keys, which is
linear; the rows that look sharpest are always read, and a sample represents the rest.

Mutual information. I(i; j) of a token drawn evenly and the token it attends to, in nats:
I = H(mean row) - mean H(P_i). The mean row is exact and linear for every kind but softmax, so I is
as exact as the mean entropy. For softmax of a long text neither is; there I is at least that of the
rows that were read, and at most log N - mean H. The value is the middle, the error half the width
plus the sampling error. Beside are bounds of I: log N; log |P|_F^2 (the attended token drawn once);
and with LLN, I(i; channel) <= log D for the share that goes through the channels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.diagnostics.head_group import HeadGroup
from engine.diagnostics.head_view import token_tiles
from engine.diagnostics.instrument import Instrument
from engine.diagnostics.quantiles import quantiles_over_rows
from engine.diagnostics.readings import Quantity, Reading, error_floats, floats
from engine.diagnostics.rows import sum_p_log_p
from engine.diagnostics.sampling import Estimate, mean_of, row_weights, within
from engine.steps import Steps, computed_once

NUM_SHARPEST = 64


def measure_entropy(heads: HeadGroup) -> Steps[Reading]:
    """The mean row entropy of every head, and its bracket where there is one."""
    estimate = yield from mean_entropy(heads)
    sampled = estimate.error is not None
    count = heads.effort.num_rows(heads.num_tokens)
    beside = {
        "bits": Quantity(
            values=floats(estimate.values) / math.log(2),
            unit="bits",
            error=None if estimate.error is None else floats(estimate.error) / math.log(2),
        )
    }
    beside |= quantiles_over_rows(heads, (yield from _row_entropies(heads)), ENTROPY.unit)
    if heads.view.has_channels:
        bracket = yield from entropy_bracket(heads)
        for name, bound in zip(("lower", "upper"), bracket, strict=True):
            beside[name] = Quantity(values=floats(bound), unit=ENTROPY.unit)
    return Reading(
        values=floats(estimate.values),
        error=error_floats(estimate.error),
        method=_method(heads, count) if sampled else "exact: every row",
        unit=ENTROPY.unit,
        cost=_cost(heads, count),
        beside=beside,
    )


def _row_entropies(heads: HeadGroup) -> Steps[Tensor]:
    """Entropies of all rows, or of those that are read: [H, rows]."""
    if heads.view.attention == "block_diagonal":
        return (yield from heads.block_rows()).entropy
    return (yield from heads.rows()).statistics.entropy


def mean_entropy(heads: HeadGroup) -> Steps[Estimate]:
    if heads.view.attention == "block_diagonal":
        rows = yield from heads.block_rows()
        return Estimate(rows.entropy.mean(1), None)
    sample = yield from heads.rows()
    entropy = sample.statistics.entropy
    if not heads.view.has_channels:
        return (yield from heads.mean_of_softmax(entropy, _range(heads)))
    if heads.reads_all_rows:
        return mean_of(entropy, heads.num_tokens)
    lower, width = yield from _row_bracket(heads)
    if heads.view.attention == "lln_diag":
        exact = yield from _entropy_of_blocks(heads)
        entropy = entropy - exact[:, sample.rows]
    controls = [(known[:, sample.rows], known.mean(1)) for known in (lower, width)]
    found = mean_of(entropy, heads.num_tokens, controls)
    if heads.view.attention == "lln_diag":
        found = Estimate(found.values + exact.mean(1), found.error)
    return within(found, _range(heads))


def _range(heads: HeadGroup) -> tuple[float, float]:
    """The range of entropies and of mutual information."""
    return 0.0, math.log(heads.num_tokens)


def entropy_bracket(heads: HeadGroup) -> Steps[tuple[Tensor, Tensor]]:
    """Bounds of the mean row entropy of LLN and LLN+Diag, exact and linear: [H] each."""
    lower, width = yield from _row_bracket(heads)
    if heads.view.attention == "lln_diag":
        lower = lower + (yield from _entropy_of_blocks(heads))
    return lower.mean(1), (lower + width).mean(1)


def _row_bracket(heads: HeadGroup) -> Steps[tuple[Tensor, Tensor]]:
    """The lower bound of every row's LLN entropy, and the width of its bracket: [H, N] each.

    They are sum_c pi_c H(kappa_c) and H(pi); of LLN+Diag, beyond the block and times LLN's share.
    """
    factors = yield from heads.factors()
    tiles = list(token_tiles(heads.num_tokens))
    by_tile = [-sum_p_log_p(factors.kappa[:, :, tile]) for tile in tiles]
    channels = torch.stack(by_tile).sum(0).unsqueeze(-1)  # [H, D, 1]
    yield
    lower, width = (factors.pi @ channels).squeeze(-1), (yield from heads.choice_entropies())
    if heads.view.attention != "lln_diag":
        return lower, width
    seen = yield from heads.seen_sums()
    share = heads.view.lln_share()
    lower, width = lower - seen.channel_entropy, width - seen.choice_entropy
    return share * lower.clamp_min(0.0), share * width.clamp_min(0.0)


def _entropy_of_blocks(heads: HeadGroup) -> Steps[Tensor]:
    """A row's entropy under LLN+Diag, without the part -m sum_beyond l log l: [H, N]."""
    seen = yield from heads.seen_sums()
    share = heads.view.lln_share()
    of_share: Tensor = torch.special.xlogy(share, share)
    return of_share * (seen.lln - 1) - seen.p_log_p


def _method(heads: HeadGroup, count: int) -> str:
    match heads.view.attention:
        case "lln":
            return f"sampled: {count} rows, corrected by the bracket of all; standard error"
        case "lln_diag":
            return f"exact in blocks, LLN sampled: {count} rows, corrected by the bracket of all"
        case _:
            return f"sampled: {count} rows, corrected by how sharp every row looks; standard error"


def _cost(heads: HeadGroup, count: int) -> str:
    rows = "N^2 D" if count == heads.num_tokens else f"{count} N D"
    in_blocks = {"block_diagonal": "N b D", "lln_diag": f"N b D + {rows}"}
    return in_blocks.get(heads.view.attention, rows)


ENTROPY = Instrument(
    name="entropy",
    unit="nats",
    description="mean entropy of the attention rows; 0 is one token, log N is all tokens evenly. "
    "Beside: bits, and the linear bracket of kinds with LLN.",
    measure=measure_entropy,
)


@computed_once
def mean_collision(heads: HeadGroup) -> Steps[Estimate]:
    collisions = yield from heads.collisions()
    if heads.view.attention != "softmax" or heads.reads_all_rows:
        return mean_of(collisions, heads.num_tokens)
    guesses = yield from heads.guessed_collisions()
    order = guesses.clone()
    order[:, [0, -1]] = torch.inf  # always read, not drawn: they may represent no other row
    sharpest = order.topk(min(NUM_SHARPEST, heads.num_tokens), dim=1).indices  # [H, rows]
    of_sharpest = yield from _collisions_of(heads, sharpest)
    rows = (yield from heads.rows()).rows
    found = [
        _stratified_mean(collisions[head], of_sharpest[head], rows, sharpest[head], guesses[head])
        for head in range(heads.num_heads)
    ]
    values, errors = (torch.cat(parts) for parts in zip(*found, strict=True))
    return within(Estimate(values, errors), (1 / heads.num_tokens, 1.0))


def _collisions_of(heads: HeadGroup, rows: Tensor) -> Steps[Tensor]:
    """The collisions of rows [H, rows], each head's own."""
    view = heads.view
    reader = yield from heads.row_reader()
    index = rows.unsqueeze(-1).expand(-1, -1, view.head_size)
    queries = view.q.transpose(0, 1).gather(1, index).to(reader.dtype) * view.scale
    found = []
    for few in torch.split(queries, 1, dim=1):
        p = torch.bmm(few, reader.keys).softmax(-1)
        found.append(torch.linalg.vecdot(p, p).double())
        yield
    return torch.cat(found, dim=1)


def _stratified_mean(
    sampled: Tensor, of_sharpest: Tensor, rows: Tensor, sharpest: Tensor, guesses: Tensor
) -> tuple[Tensor, Tensor]:
    """One head's mean collision over all rows and its standard error: [1] each. The sharpest rows
    are all read, and the guesses explain part of how the others differ."""
    population = len(guesses)
    is_rest = torch.ones(population, dtype=torch.bool, device=rows.device)
    is_rest[sharpest] = False
    others = is_rest[rows]
    guess = guesses[is_rest].mean().unsqueeze(0)
    rest = Estimate(guess, guess)  # if the sample has too few other rows for an error
    if int(others.sum()) > 1:
        known = guesses[rows[others]].unsqueeze(0), guess
        limits = 1 / population, 1.0
        per_row = sampled[others].unsqueeze(0)
        rest = mean_of(per_row, int(is_rest.sum()), [known], limits, ends=(0, 0))
    share = 1 - len(sharpest) / population
    values = of_sharpest.sum() / population + share * rest.values
    error = torch.zeros_like(values) if rest.error is None else share * rest.error
    return values, error


def measure_mutual_information(heads: HeadGroup) -> Steps[Reading]:
    entropy = yield from mean_entropy(heads)
    mean_row = yield from heads.mean_row()
    if mean_row is None:
        estimate = yield from _from_sample(heads, entropy)
        method = "bounds: the rows read, and log N - mean entropy; error: half their distance"
    else:
        values = torch.special.entr(mean_row).sum(-1) - entropy.values
        estimate = within(Estimate(values, entropy.error), _range(heads))
        exact = entropy.error is None
        method = "exact" if exact else "mean row exact, entropy sampled; standard error"
    beside = yield from _bounds(heads)
    if mean_row is not None and heads.effort.quantiles:
        told = yield from _row_informations(heads, mean_row)
        beside |= quantiles_over_rows(heads, told, MUTUAL_INFORMATION.unit)
    return Reading(
        values=floats(estimate.values),
        error=error_floats(estimate.error),
        method=method,
        unit=MUTUAL_INFORMATION.unit,
        cost="that of entropy",
        beside=beside,
    )


def _row_informations(heads: HeadGroup, mean_row: Tensor) -> Steps[Tensor]:
    """KL(P_i | mean row) of the rows whose entropy is read, [H, rows]. Its mean is I."""
    entropies = yield from _row_entropies(heads)
    operator = yield from heads.operator()
    logs = mean_row.clamp_min(torch.finfo(mean_row.dtype).tiny).log()
    cross = (yield from operator(logs.unsqueeze(-1))).squeeze(-1).double()
    if entropies.shape[1] < heads.num_tokens:
        cross = cross[:, (yield from heads.rows()).rows]
    return (-cross - entropies).clamp_min(0.0)


def _from_sample(heads: HeadGroup, entropy: Estimate) -> Steps[Estimate]:
    """The information of the sampled rows is a lower bound of I: fewer rows mixed tell less."""
    assert entropy.error is not None, "a sample has a standard error"
    sample = yield from heads.rows()
    weights = row_weights(len(sample.rows), heads.num_tokens).to(sample.row_sum.device)
    own = sample.statistics.entropy @ weights
    mean_row = sample.row_sum / heads.num_tokens
    lower = (torch.special.entr(mean_row).sum(-1) - own).clamp_min(0.0)
    upper = (math.log(heads.num_tokens) - entropy.values).maximum(lower)
    return Estimate((lower + upper) / 2, (upper - lower) / 2 + entropy.error)


def _bounds(heads: HeadGroup) -> Steps[dict[str, Quantity]]:
    norm = yield from mean_collision(heads)
    from_norm = (norm.values * heads.num_tokens).log().clamp_min(0.0)
    error = None if norm.error is None else norm.error / norm.values
    bounds = {
        "log_tokens": Quantity(
            values=floats(torch.full_like(norm.values, math.log(heads.num_tokens))), unit="nats"
        ),
        "log_squared_norm": Quantity(
            values=floats(from_norm), unit="nats", error=error_floats(error)
        ),
    }
    if heads.view.has_channels:
        pi = (yield from heads.factors()).pi
        undecided = (yield from heads.choice_entropies()).mean(1)
        through_channels = torch.special.entr(pi.mean(1)).sum(-1) - undecided
        bounds["channels"] = Quantity(values=floats(through_channels.clamp_min(0.0)), unit="nats")
    return bounds


MUTUAL_INFORMATION = Instrument(
    name="mutual_information",
    unit="nats",
    description="what a token tells of the token it attends to; 0 where all rows are alike. "
    "Beside: its bounds.",
    measure=measure_mutual_information,
)
