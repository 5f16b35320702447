"""The face of the engine: HTTP and gRPC in one process, settings, metrics and the command line."""

import os

# Read when gRPC is first imported. It would write lines of its own into the log whenever this
# process starts another one, none of which ever uses gRPC's connections.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
