"""Ranks that read one document together, on the machines of a Ray cluster."""
