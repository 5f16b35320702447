"""The gRPC face: the services of proto/lln/v1, health and reflection, on HTTP's event loop."""
