"""Judging models: retrieval of documents and passages on held-out text."""
