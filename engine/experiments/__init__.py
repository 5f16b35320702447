"""Training experiments: fair contests of attention kinds and of optimisers, outside serving."""
