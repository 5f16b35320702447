"""What LLN's channels are about: the tokens each one spreads over, and those that pick it.

Token i picks channel c with probability pi_ic, and channel c attends to token j with weight
kappa_cj, so a head is a mixture of D topics.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.diagnostics.statistics import entropy_of_probabilities
from engine.maps.document import OpenDocument
from engine.maps.lens import HeadLens
from engine.types import Topic, TopicToken


def topics_of(
    lens: HeadLens, document: OpenDocument, *, count: int, tokens: int
) -> tuple[Topic, ...]:
    """The channels that carry most of the head's attention, the busiest first."""
    assert lens.prefixes is not None, "only LLN has channels"
    length = lens.view.num_tokens
    shares = lens.prefixes.pi[-1] / length  # [D] of all the head's attention
    picks = lens.prefixes.rows(0, length).t()  # [D, N]
    spreads = lens.prefixes.keys(0, length).t()  # [D, N]
    busiest = shares.topk(min(count, len(shares))).indices.tolist()
    return tuple(
        Topic(
            channel=channel,
            share=float(shares[channel]),
            effective_tokens=float(entropy_of_probabilities(spreads[channel]).exp()),
            tokens=_strongest(spreads[channel], document, tokens),
            users=_strongest(picks[channel], document, tokens),
        )
        for channel in busiest
    )


def _strongest(weights: Tensor, document: OpenDocument, count: int) -> tuple[TopicToken, ...]:
    top = torch.topk(weights, min(count, len(weights)))
    indices = top.indices.tolist()
    written = document.written(indices)
    return tuple(
        TopicToken(index=index, token=token, characters=document.characters_of(index), weight=value)
        for index, token, value in zip(indices, written, top.values.tolist(), strict=True)
    )
