"""What attention heads do, measured in one pass over their keys: nothing here is N x N."""

from kernels.instruments.functional import moments, row_statistics
from kernels.instruments.question import Kind, Moments, RowStatistics

__all__ = ["Kind", "Moments", "RowStatistics", "moments", "row_statistics"]
