"""Other engines over the same weights: text in, unit vectors out, as in ours."""
