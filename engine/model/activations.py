"""Activations that give a row the same bits whatever rows are beside it.

On a CPU torch's own kernels for the logistic function, SiLU and GELU round some numbers differently
where a row is not contiguous, or a thread's part ends within it, so that a text's vector would
depend on its batch in the last bit. Its tanh does not, nor does its GELU of contiguous rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.model.weights import Activation

_TANH_SCALE, _TANH_CUBIC = math.sqrt(2 / math.pi), 0.044715
"""Of the GELU that is written with a tanh."""


def activate(x: Tensor, activation: Activation | None) -> Tensor:
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


def logistic(x: Tensor) -> Tensor:
    return (torch.tanh(x / 2) + 1) / 2
