"""The classes that measurements are counted in: buckets of histograms, and lengths of texts."""

from __future__ import annotations

SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    300,
    600,
)
TOKENS = tuple(2.0**power for power in range(2, 25))
SEQUENCES = tuple(2.0**power for power in range(11))

_LENGTHS = (128, 512, 2048, 8192, 32_768, 131_072, 1_048_576)
_LONGER = "longer"
LENGTH_CLASSES = (*map(str, _LENGTHS), _LONGER)


def length_class(tokens: int) -> str:
    """Returns the smallest of a few bounds that is at least `tokens`, as a label value."""
    return next((str(bound) for bound in _LENGTHS if tokens <= bound), _LONGER)
