"""Encoders over packed sequences, and the models made of them."""
