"""Several servers behind one address, on Ray Serve: requests go where the fewest tokens wait."""
