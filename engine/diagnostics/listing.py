"""What there is to read, for those who show it."""

from __future__ import annotations

from engine.diagnostics import INSTRUMENTS, Instrument
from engine.types import InstrumentInfo


def instrument_infos() -> tuple[InstrumentInfo, ...]:
    return tuple(
        InstrumentInfo(
            name=one.name,
            unit=one.unit,
            scope="head" if isinstance(one, Instrument) else "layer",
            description=one.description,
        )
        for one in INSTRUMENTS.values()
    )
