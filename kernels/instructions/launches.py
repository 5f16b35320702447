"""The launches that are counted: those that a server makes, in bfloat16, and the usual benchmarks'.

Each text is alone in its batch: in others every program also reads which rows are its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernels.instructions.backward_launches import backward
from kernels.instructions.forms import FORMS, SERVED, Form
from kernels.instructions.forward_launches import diag_alone, forward, short_text, tile
from kernels.instructions.launch import Launch


def launches() -> Iterator[Launch]:
    seen = set()
    for form in FORMS:
        for launch in (*forward(form), *backward(form)):
            if launch.name not in seen:
                seen.add(launch.name)
                yield launch
    yield from map(tile, SERVED)
    yield short_text(Form(64, 64, maps=False, sinks=False))
    yield diag_alone(SERVED[0])
