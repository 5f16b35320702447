"""Activations that give a row the same bits in every batch."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import functional as F

from engine.model.weights import Activation
from kernels.attention.shares import logistic

_TANH_SCALE, _TANH_CUBIC = math.sqrt(2 / math.pi), 0.044715
"""Constants of the tanh approximation of GELU."""


def activate(x: Tensor, activation: Activation | None) -> Tensor:
    """Gives a row the same bits whatever rows are beside it.

    On a CPU, torch's kernels for the logistic function, SiLU and GELU round some numbers
    differently if a row is not contiguous, or if a thread's share ends within it. Then a text's
    vector would depend on its batch in the last bit. torch's tanh does not have this problem, nor
    does its GELU of contiguous rows.
    """
    on_cpu = x.device.type == "cpu"
    match activation:
        case None:
            return x
        case "gelu":
            return F.gelu(x.contiguous())
        case "gelu_tanh" if on_cpu:
            return x * logistic(2 * _TANH_SCALE * (x + _TANH_CUBIC * x * x * x))
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case "relu":
            return F.relu(x)
        case "silu":
            return x * logistic(x) if on_cpu else F.silu(x)
