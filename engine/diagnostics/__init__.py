"""Instruments that look at attention heads: a registry, and one call that reads several.

Add one by writing a file with an `Instrument` and naming it in INSTRUMENTS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from engine.diagnostics.base import Effort, HeadMap, HeadView, Instrument, Reading
from engine.diagnostics.entropy import ENTROPY
from engine.diagnostics.spectral_gap import SPECTRAL_GAP
from engine.diagnostics.temperature import TEMPERATURE
from engine.errors import InvalidInput

__all__ = [
    "INSTRUMENTS",
    "Effort",
    "HeadMap",
    "HeadView",
    "Instrument",
    "Reading",
    "find_instruments",
    "measure",
]

INSTRUMENTS: Mapping[str, Instrument] = MappingProxyType(
    {instrument.name: instrument for instrument in (TEMPERATURE, ENTROPY, SPECTRAL_GAP)}
)


def find_instruments(names: Sequence[str] | None) -> list[Instrument]:
    """The instruments of these names; all of them for None."""
    if names is None:
        return list(INSTRUMENTS.values())
    for name in names:
        if name not in INSTRUMENTS:
            known = ", ".join(INSTRUMENTS)
            raise InvalidInput(
                f"there is no instrument {name!r}; there are {known}",
                code="unknown_instrument",
                param="instruments",
                limit=known,
                actual=name,
            )
    return [INSTRUMENTS[name] for name in names]


def measure(
    view: HeadView, instruments: Sequence[str] | None = None, effort: Effort | None = None
) -> dict[str, Reading]:
    """What the named instruments (None: all) read from every head of the view."""
    chosen = find_instruments(instruments)
    with torch.no_grad():
        return {one.name: one.measure(view, effort or Effort()) for one in chosen}
