"""Times every operation against the least that it takes, and against what else is installed."""
