"""Qin et al., "cosFormer" (2022): relu features, weighted by cos(pi/2 (i - j) / N).

cos(a - b) = cos a cos b + sin a sin b makes of the weight twice as many features.
"""

import math

import torch
from torch import Tensor

from engine.model.baselines.features import FeatureAttention


def features(rows: Tensor) -> Tensor:
    position = torch.arange(1, len(rows) + 1, dtype=rows.dtype, device=rows.device)
    angle = (math.pi / 2 * position / len(rows))[:, None, None]
    positive = rows.relu()
    return torch.cat([positive * angle.cos(), positive * angle.sin()], dim=-1)


COSFORMER = FeatureAttention("cosformer", features)
