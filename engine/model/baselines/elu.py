"""Katharopoulos et al., "Transformers are RNNs" (2020): phi(x) = elu(x) + 1."""

from torch import Tensor
from torch.nn import functional as F

from engine.model.baselines.features import FeatureAttention


def features(rows: Tensor) -> Tensor:
    return F.elu(rows) + 1


ELU = FeatureAttention("elu", features)
