"""Maps of a head's attention at any resolution, without its N x N matrix."""
