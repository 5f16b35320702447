"""Benchmarks of LLN and of other engines on this machine: `python -m benchmarks --help`."""

from engine.platform.process import prepare_process

# Before torch is loaded, for every contender alike: servers measured from outside do so as well.
prepare_process()
