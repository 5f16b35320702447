"""What is asked of a server under load: texts of given lengths, made of common words."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

# One token each to BERT's vocabulary. The server says how many it counted, whatever the model.
_TEXT = """
time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work government number night
point home water room mother area money story fact month lot right study book eye job word business
issue side kind head house service friend father power hour game line end member law car city
community name president team minute idea body information back
"""
_WORDS = _TEXT.split()
_SPECIAL_TOKENS = 2


class Request(NamedTuple):
    path: str
    body: bytes


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """A mix of lengths in tokens, each with its weight; every text is a request."""

    name: str
    weights: Mapping[int, float]
    model: str = "default"

    @classmethod
    def of_lengths(cls, lengths: Sequence[int], model: str) -> Traffic:
        return cls(name="even", weights=dict.fromkeys(lengths, 1.0), model=model)

    def requests(self, seed: int) -> Iterator[Request]:
        """Without end, and the same for the same seed."""
        for text in self.texts(seed):
            fields = {"input": text, "encoding_format": "base64", "model": self.model}
            yield Request("/v1/embeddings", json.dumps(fields).encode())

    def texts(self, seed: int) -> Iterator[str]:
        rng = random.Random(seed)
        lengths, weights = list(self.weights), list(self.weights.values())
        while True:
            (length,) = rng.choices(lengths, weights)
            yield " ".join(rng.choices(_WORDS, k=max(1, length - _SPECIAL_TOKENS)))


PROFILES: Mapping[str, Traffic] = {
    traffic.name: traffic
    for traffic in (
        Traffic(name="short", weights={8: 1, 16: 2, 32: 2, 64: 1}),
        Traffic(name="mixed", weights={16: 40, 64: 30, 256: 20, 512: 8, 4096: 2}),
        Traffic(name="long", weights={2048: 4, 8192: 2, 16_384: 1}),
    )
}
