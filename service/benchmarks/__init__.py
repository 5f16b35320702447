"""Benchmarks of this machine: the suites, the queue of runs, their history and reports."""
