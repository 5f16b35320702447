"""What this machine does with LLN and with what others use: `python -m benchmarks --help`."""

from engine.process import prepare_process

# Before torch is loaded, for everyone here alike: a server measured from outside does so as well.
prepare_process()
