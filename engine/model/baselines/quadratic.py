"""phi(x) = x^2 element by element: the linear-time counterpart of the kernel (q . k)^2."""

from engine.model.baselines.features import FeatureAttention

QUADRATIC = FeatureAttention("quadratic", lambda rows: rows.square())
