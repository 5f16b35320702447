"""Pydantic models of the bodies of requests and answers."""
