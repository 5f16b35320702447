"""The gRPC server: the services of proto/, health and reflection, on the event loop of HTTP."""
