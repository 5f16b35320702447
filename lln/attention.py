"""LLN+Diag as an attention of stock transformers models, by the name "lln_diag".

The numbers of LLN belong to a checkpoint. So a model needs a calibration of its own before it can
attend: `use_calibration(model, folder)`, where `lln adapt` wrote the folder.
"""

from __future__ import annotations

import os
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.config import EngineConfig
from engine.errors import CheckpointError, InvalidInput
from engine.model.attention import LayerAttention
from engine.model.embedding_model import load_model
from kernels.attention import PackedSequences

NAME = "lln_diag"
_PLACE = "lln_attention"  # where a module holds its layer's attention


def use_calibration(model: PreTrainedModel, folder: str | os.PathLike[str]) -> None:
    """Give every attention module the calibration of its layer, from a folder or a name."""
    device = str(model.device)
    known = load_model(str(folder), attention=NAME, config=EngineConfig(device=device))
    if known.calibration is not None and known.calibration.adapted:
        raise CheckpointError(
            f"{folder} was trained with its encoder, which a stock model lacks: export it with "
            "`lln export` and load that folder",
            code="trained_encoder",
            actual=str(folder),
        )
    modules = [module for module in model.modules() if _attends(module)]
    if len(modules) != len(known.encoder.attention):
        raise CheckpointError(
            f"{folder} has {len(known.encoder.attention)} layers, the model {len(modules)}",
            code="calibration_mismatch",
            limit=len(known.encoder.attention),
            actual=len(modules),
        )
    for module, attention in zip(modules, known.encoder.attention, strict=True):
        setattr(module, _PLACE, attention)


def _attends(module: nn.Module) -> bool:
    """Whether this module calls transformers' attention registry itself."""
    return hasattr(module, "is_causal") and hasattr(module, "config")


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention's output [B, N, H, D] of query, key and value [B, H, N, D]."""
    attention: LayerAttention | None = getattr(module, _PLACE, None)
    if attention is None:
        raise InvalidInput(
            f"attention {NAME!r} needs a calibration: call lln.use_calibration(model, FOLDER), "
            "where `lln adapt` wrote FOLDER",
            code="not_calibrated",
            param="attn_implementation",
            actual=NAME,
        )
    _check_is_standard(query, dropout, scaling)
    q, k, v = (states.transpose(1, 2) for states in (query, key, value))
    kept = _kept(q, attention_mask)
    packed = PackedSequences.of([0, *accumulate(kept.sum(1).tolist())], q.device)
    attended = attention(q[kept], k[kept], v[kept], packed)
    return attended.new_zeros(v.shape).index_put((kept,), attended), None


def _kept(q: Tensor, mask: Tensor | None) -> Tensor:
    """Which tokens [B, N] are text and not padding."""
    if mask is None:
        return torch.ones(q.shape[:2], dtype=torch.bool, device=q.device)
    return mask.bool()


def _check_is_standard(query: Tensor, dropout: float, scaling: float | None) -> None:
    usual = query.shape[-1] ** -0.5
    if scaling is not None and abs(scaling - usual) > 1e-6 * usual:
        raise InvalidInput(
            f"attention {NAME!r} scales by {usual:g}, the model asks for {scaling:g}",
            code="unsupported_scaling",
            limit=usual,
            actual=scaling,
        )
    if dropout:
        raise InvalidInput(
            f"attention {NAME!r} has no dropout, the model asks for {dropout:g}: call model.eval()",
            code="unsupported_dropout",
            limit=0,
            actual=dropout,
        )
