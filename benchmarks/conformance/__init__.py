"""Cases of others, thrown at a server of ours: HTTP/1.1 conformance and request smuggling.

None of their code is here: each suite is read or run from a checkout of its repository.
"""
