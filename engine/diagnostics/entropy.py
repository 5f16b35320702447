"""The mean entropy of a head's attention rows, H = -(1/N) sum_ij P_ij log P_ij, in nats.

0 when every token attends to one token, log N when all attend evenly; the LLN paper's eq. 7 in
bits is read beside.

- Block-diagonal rows are short: exact, linear.
- Softmax: exact row by row where all rows are read, else the mean of a sample, corrected by what
  the variance of the scores, known of every row, explains.
- LLN: the entropy of a mixture, sum_c pi_ic H(kappa_c) <= H(P_i) <= the same + H(pi_i), a bracket
  in linear time. Where rows are sampled, both of its parts are known of every row, and only what
  they do not explain has a sampling error.
- LLN+Diag: with p = m l + (1 - m) b in the block and p = m l beyond it,
  sum p log p = sum_block p log p + m log m sum_beyond l + m sum_beyond l log l. All but the last is
  exact and linear; that is sampled, and bracketed as above with the channels beyond the block.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.diagnostics.base import Instrument, Quantity, Reading
from engine.diagnostics.factors import token_tiles
from engine.diagnostics.heads import Heads
from engine.diagnostics.statistics import Estimate, error_floats, floats, mean_of, sum_p_log_p
from engine.diagnostics.work import Work


def measure_entropy(heads: Heads) -> Work[Reading]:
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


def mean_entropy(heads: Heads) -> Work[Estimate]:
    if heads.view.attention == "block_diagonal":
        rows = yield from heads.block_rows()
        return Estimate(rows.entropy.mean(1), None)
    sample = yield from heads.rows()
    entropy = sample.statistics.entropy
    if not heads.view.has_channels:
        return (yield from heads.mean_of_softmax(entropy))
    if heads.reads_all_rows:
        return mean_of(entropy, heads.num_tokens)
    lower, width = yield from _row_bracket(heads)
    if heads.view.attention == "lln_diag":
        exact = yield from _entropy_of_blocks(heads)
        entropy = entropy - exact[:, sample.rows]
    controls = [(known[:, sample.rows], known.mean(1)) for known in (lower, width)]
    found = mean_of(entropy, heads.num_tokens, controls)
    if heads.view.attention == "lln_diag":
        return Estimate(found.values + exact.mean(1), found.error)
    return found


def entropy_bracket(heads: Heads) -> Work[tuple[Tensor, Tensor]]:
    """Bounds of the mean row entropy of LLN and LLN+Diag, exact and linear: [H] each."""
    lower, width = yield from _row_bracket(heads)
    if heads.view.attention == "lln_diag":
        lower = lower + (yield from _entropy_of_blocks(heads))
    return lower.mean(1), (lower + width).mean(1)


def _row_bracket(heads: Heads) -> Work[tuple[Tensor, Tensor]]:
    """What the entropy of every row's LLN is at least, and how much more it may be: [H, N] each.

    sum_c pi_c H(kappa_c) and H(pi); of LLN+Diag, over what lies beyond the block, and times LLN's
    share.
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
    share = heads.mix()
    lower, width = lower - seen.channel_entropy, width - seen.choice_entropy
    return share * lower.clamp_min(0.0), share * width.clamp_min(0.0)


def _entropy_of_blocks(heads: Heads) -> Work[Tensor]:
    """All of a row's entropy under LLN+Diag but m sum_beyond l log l: [H, N]."""
    seen = yield from heads.seen_sums()
    share = heads.mix()
    of_share: Tensor = torch.special.xlogy(share, share)
    return of_share * (seen.lln - 1) - seen.p_log_p


def _method(heads: Heads, count: int) -> str:
    match heads.view.attention:
        case "lln":
            return f"sampled: {count} rows, corrected by the bracket of all; standard error"
        case "lln_diag":
            return f"exact in blocks, LLN sampled: {count} rows, corrected by the bracket of all"
        case _:
            return f"sampled: {count} rows, corrected by the score variance of all; standard error"


def _cost(heads: Heads, count: int) -> str:
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
