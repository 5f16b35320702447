"""How the instruments' kernels multiply."""

PRECISION = "tf32x3"
"""Rows are float32 here: an entropy is a small difference of large sums."""
