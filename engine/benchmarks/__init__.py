"""Timing the engine: benchmarks that run on the device in short steps, between other work."""
