"""Precisions as parameters of tests; a test is skipped where the CPU cannot use one."""

from __future__ import annotations

import pytest

from engine.platform.device import (
    REDUCED,
    cpu_multiplies_bfloat16,
    cpu_multiplies_int8,
    cpu_multiplies_reduced_int8,
)

needs_bfloat16 = pytest.mark.skipif(
    not cpu_multiplies_bfloat16(), reason="this CPU has no units for bfloat16"
)
needs_reduced_int8 = pytest.mark.skipif(
    not cpu_multiplies_reduced_int8(), reason="this CPU has no instructions for int8"
)
needs_int8 = pytest.mark.skipif(
    not cpu_multiplies_int8(), reason="this CPU has no instructions for int8 in its whole range"
)
BFLOAT16 = pytest.param("bfloat16", marks=needs_bfloat16)
INT8_FORMS = (
    pytest.param("int8", marks=needs_int8),
    pytest.param(REDUCED, marks=needs_reduced_int8),
)
USED_AS_INT8 = "int8" if cpu_multiplies_int8() else REDUCED
"""What "int8" is on this CPU."""
