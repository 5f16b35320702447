"""Policies that route requests to replicas, measured on Ray Serve and simulated."""
