"""Times every operation against the bytes it must move, and against what else is installed."""
