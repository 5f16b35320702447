"""ASGI middleware, from the outside in: observe, access, body."""
