"""Benchmarks of this very machine, started over the network and kept."""
