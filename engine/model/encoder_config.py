"""An encoder's configuration, each of whose values is told by file, key and value where wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError, Quantity
from engine.model.weights import ACTIVATIONS, Activation


@dataclass(frozen=True)
class EncoderConfig:
    path: Path
    values: Mapping[str, Any]

    def whole(self, name: str, *, default: int | None = None, least: int = 1) -> int:
        value = self.values.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.refusal(name, f"a whole number of at least {least}", limit=least)
        return value

    def positive(self, name: str, *, default: float | None = None) -> float:
        value = self._number(name, default)
        if value is None or value <= 0:
            raise self.refusal(name, "a positive number")
        return value

    def not_negative(self, name: str, *, default: float | None = None) -> float:
        value = self._number(name, default)
        if value is None or value < 0:
            raise self.refusal(name, "a number of at least 0", limit=0)
        return value

    def _number(self, name: str, default: float | None) -> float | None:
        """None where it is no finite number. Some tools write 1e-12 as a string."""
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            return None
        try:
            number = float(value)
        except (ValueError, OverflowError):  # a whole number may be beyond every float
            return None
        return number if math.isfinite(number) else None

    def activation(self, name: str) -> Activation:
        value = self.values.get(name, "gelu")
        if not isinstance(value, str) or value not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise self.refusal(name, f"one of {known}", limit=known)
        return ACTIVATIONS[value]

    def switch(self, name: str) -> bool:
        """Off where it is left out."""
        return bool(self.values.get(name, False))

    def part(self, *names: str) -> EncoderConfig | None:
        """An object within this one, where there is one."""
        values: Any = self.values
        for name in names:
            values = values.get(name) if isinstance(values, Mapping) else None
        return replace(self, values=values) if isinstance(values, Mapping) else None

    def refusal(self, name: str, wanted: str, *, limit: Quantity | None = None) -> CheckpointError:
        value = self.values.get(name)
        return CheckpointError(
            f"{self.path}: {name} must be {wanted}, got {value!r}",
            code="invalid_config",
            param=name,
            limit=limit,
            actual=str(value),
        )
