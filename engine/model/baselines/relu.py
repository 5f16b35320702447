"""phi(x) = max(x, 0), which no scale of x changes."""

from engine.model.baselines.features import FeatureAttention

RELU = FeatureAttention("relu", lambda rows: rows.relu())
