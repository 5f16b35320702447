"""Instruments that look at attention: a registry, and one call that reads several.

Add one by writing a file with an `Instrument` (of heads) or a `LayerInstrument` and naming it here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from engine.diagnostics.attention_fisher import ATTENTION_FISHER
from engine.diagnostics.base import Effort, Instrument, Quantity, Reading
from engine.diagnostics.effective_rank import EFFECTIVE_RANK
from engine.diagnostics.energy import ENERGY
from engine.diagnostics.entropy import ENTROPY
from engine.diagnostics.head_scale import HEAD_SCALE
from engine.diagnostics.layers import LayerInstrument, LayerView
from engine.diagnostics.lognormality import LOGNORMALITY
from engine.diagnostics.measuring import read_heads
from engine.diagnostics.mutual_information import MUTUAL_INFORMATION
from engine.diagnostics.path_lengths import PATH_LENGTHS
from engine.diagnostics.pruning import PRUNING
from engine.diagnostics.rank_collapse import RANK_COLLAPSE
from engine.diagnostics.similarity import SIMILARITY
from engine.diagnostics.spectral_gap import SPECTRAL_GAP
from engine.diagnostics.stationary import STATIONARY
from engine.diagnostics.temperature import TEMPERATURE
from engine.diagnostics.view import HeadMap, HeadView
from engine.diagnostics.weight_fisher import WEIGHT_FISHER
from engine.diagnostics.work import finish
from engine.errors import InvalidInput, shown

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
    """The instruments of these names; all of them for None."""
    if names is None:
        return list(INSTRUMENTS.values())
    for name in names:
        if name not in INSTRUMENTS:
            known = ", ".join(INSTRUMENTS)
            raise InvalidInput(
                f"there is no instrument {shown(name)!r}; there are {known}",
                code="unknown_instrument",
                param="instruments",
                limit=known,
                actual=name,
            )
    return [INSTRUMENTS[name] for name in dict.fromkeys(names)]


def measure(
    view: HeadView, instruments: Sequence[str] | None = None, effort: Effort | None = None
) -> dict[str, Reading]:
    """What the named instruments of heads read; None: all that the view suffices for."""
    found = find_instruments(instruments)
    chosen = [one for one in found if isinstance(one, Instrument)]
    if instruments is None:
        chosen = [one for one in chosen if not _missing(one, view)]
    for one in chosen:
        for part in _missing(one, view):
            raise InvalidInput(f"{one.name} needs {part} of the view", param=part)
    return {name: timed.reading for name, timed in finish(
        read_heads(view, chosen, effort or Effort())).items()}  # fmt: skip


def _missing(instrument: Instrument, view: HeadView) -> list[str]:
    return [part for part in instrument.needs if getattr(view, part) is None]
