"""Documents that change: how stale kept chunks are, and what segments cost retrieval."""
