"""The server and the command line: HTTP and gRPC in one process, settings, metrics, benchmarks."""

import os

# gRPC reads this when it is imported. With fork support it would log lines of its own each time we
# start a subprocess. Our subprocesses never use gRPC's connections.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
