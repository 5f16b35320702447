"""Instruments that look at attention: a registry of them, and one call that reads several.

To add one, write a file with an `Instrument` (of heads) or a `LayerInstrument`, and list it here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from engine.attention_types import InstrumentInfo
from engine.diagnostics.attention_distance import HEAD_SCALE
from engine.diagnostics.effective_rank import EFFECTIVE_RANK
from engine.diagnostics.energy import ENERGY
from engine.diagnostics.entropy import ENTROPY, MUTUAL_INFORMATION
from engine.diagnostics.fisher import ATTENTION_FISHER, WEIGHT_FISHER
from engine.diagnostics.head_kind import HEAD_KIND
from engine.diagnostics.head_readings import read_heads
from engine.diagnostics.head_view import HeadMap, HeadView
from engine.diagnostics.instrument import Instrument, LayerInstrument, LayerView
from engine.diagnostics.pruning import PRUNING
from engine.diagnostics.rank_collapse import PATH_LENGTHS, RANK_COLLAPSE
from engine.diagnostics.readings import Effort, Quantity, Reading
from engine.diagnostics.similarity import SIMILARITY
from engine.diagnostics.softmax_divergence import SOFTMAX_DIVERGENCE
from engine.diagnostics.spectral_gap import SPECTRAL_GAP
from engine.diagnostics.stationary import STATIONARY
from engine.diagnostics.temperature import LOGNORMALITY, TEMPERATURE
from engine.errors import InvalidInput, find_named
from engine.steps import finish

__all__ = [
    "HEAD_INSTRUMENTS",
    "INSTRUMENTS",
    "LAYER_INSTRUMENTS",
    "AnyInstrument",
    "Effort",
    "HeadMap",
    "HeadView",
    "Instrument",
    "LayerInstrument",
    "LayerView",
    "Quantity",
    "Reading",
    "find_instruments",
    "measure",
]

AnyInstrument: TypeAlias = Instrument | LayerInstrument

HEAD_INSTRUMENTS: Mapping[str, Instrument] = MappingProxyType(
    {
        instrument.name: instrument
        for instrument in (
            TEMPERATURE,
            ENTROPY,
            SPECTRAL_GAP,
            STATIONARY,
            LOGNORMALITY,
            EFFECTIVE_RANK,
            MUTUAL_INFORMATION,
            ENERGY,
            HEAD_SCALE,
            SIMILARITY,
            PRUNING,
            ATTENTION_FISHER,
            WEIGHT_FISHER,
            SOFTMAX_DIVERGENCE,
            HEAD_KIND,
        )
    }
)
LAYER_INSTRUMENTS: Mapping[str, LayerInstrument] = MappingProxyType(
    {instrument.name: instrument for instrument in (RANK_COLLAPSE, PATH_LENGTHS)}
)
INSTRUMENTS: Mapping[str, AnyInstrument] = MappingProxyType(
    {**HEAD_INSTRUMENTS, **LAYER_INSTRUMENTS}
)


def find_instruments(names: Sequence[str] | None) -> list[AnyInstrument]:
    """The instruments with these names, or all of them."""
    if names is None:
        return list(INSTRUMENTS.values())
    return [
        find_named("instrument", name, INSTRUMENTS, param="instruments", code="unknown_instrument")
        for name in dict.fromkeys(names)
    ]


def instrument_infos() -> tuple[InstrumentInfo, ...]:
    """What instruments there are, for clients."""
    return tuple(
        InstrumentInfo(
            name=one.name,
            unit=one.unit,
            scope="head" if isinstance(one, Instrument) else "layer",
            description=one.description,
        )
        for one in INSTRUMENTS.values()
    )


def measure(
    view: HeadView, instruments: Sequence[str] | None = None, effort: Effort | None = None
) -> dict[str, Reading]:
    """What the named instruments of heads read, or all that the view has the data for."""
    chosen = [one for one in find_instruments(instruments) if isinstance(one, Instrument)]
    if instruments is None:
        chosen = [one for one in chosen if not _missing(one, view)]
    for one in chosen:
        for part in _missing(one, view):
            raise InvalidInput(f"{one.name} needs {part} of the view", param=part)
    found = finish(read_heads(view, chosen, effort or Effort()))
    return {name: timed.reading for name, timed in found.items()}


def _missing(instrument: Instrument, view: HeadView) -> list[str]:
    return [part for part in instrument.needs if getattr(view, part) is None]
