"""Training experiments: fair contests of attention kinds, outside serving."""
