"""What this machine does with LLN and with what others use: `python -m benchmarks --help`."""
