"""The bodies of answers, a module for each kind of route.

They document openapi.json: handlers write JSON directly, and tests check it against these models.
"""
