"""The routes, one file per kind of request."""
