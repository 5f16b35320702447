"""The face of the engine: HTTP and gRPC in one process, settings, metrics and the command line."""
