"""What this machine does with LLN and with what others use: `python -m benchmarks --help`."""

from engine.idle_threads import let_idle_threads_sleep

# Before torch is loaded, for everyone here alike: a server measured from outside does so as well.
let_idle_threads_sleep()
