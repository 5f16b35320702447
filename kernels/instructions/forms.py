"""What models ask of attention: those that ship, and the usual shapes of benchmarks.

The models that ship have heads of 32 numbers with maps, a gate and a sink at either end, in blocks
of 512 tokens, and of 256 in long texts. Heads of 64 and 128 are those of larger models. A document
has so many tokens that what happens once a document does not count; a short text has 200.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

DTYPE = torch.bfloat16
FAMILY = "hopper"
TOKENS = 131072  # of the document
SHORT_TOKENS = 200  # of the short text
ROW_BYTES = DTYPE.itemsize
FLOAT_BYTES = torch.float32.itemsize
MIX_BYTES = FLOAT_BYTES  # a token and head
SINKS = 2


@dataclass(frozen=True)
class Form:
    """What a model asks of attention."""

    head_dim: int
    block_size: int
    maps: bool
    sinks: bool

    @property
    def name(self) -> str:
        served = ", maps, sinks, gate" if self.maps else ""
        return f"D {self.head_dim}{served}, blocks of {self.block_size}"

    @property
    def state_name(self) -> str:
        """What the state's passes depend on."""
        return f"D {self.head_dim}" + (", maps" if self.maps else "")

    @property
    def map_rounds(self) -> dict[str, float]:
        return {"i_k": num_steps(self.head_dim, min(self.head_dim, 64))}

    @property
    def flags(self) -> dict[str, Any]:
        return {"weight": self.maps, "bias": self.maps}

    @property
    def mix_flags(self) -> dict[str, Any]:
        return {"gate": self.maps, "mix_scale": self.maps}

    @property
    def row(self) -> int:
        """Bytes of one token's row in one tensor and head."""
        return self.head_dim * ROW_BYTES

    @property
    def mix(self) -> int:
        """Bytes of a token's mix, which the backward is given."""
        return MIX_BYTES if self.maps else 0


SERVED = (Form(32, 512, maps=True, sinks=True), Form(32, 256, maps=True, sinks=True))
PLAIN = tuple(
    Form(head_dim, block_size, maps=False, sinks=False)
    for head_dim, block_size in ((32, 64), (64, 64), (64, 128), (128, 64), (128, 128))
)
FORMS = (*SERVED, *PLAIN)


def piece_bytes(head_dim: int) -> int:
    """A state of one piece and head, in float32, with its peaks and masses."""
    return (head_dim + 2) * head_dim * FLOAT_BYTES


def num_steps(length: float, size: int) -> int:
    return math.ceil(length / size)
