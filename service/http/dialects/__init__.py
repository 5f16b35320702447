"""Other vendors' requests, each translated to the calls that answer ours.

A file holds one vendor: its routes, its bodies and its answers. `table.py` lists them. Where
several vendors have different requests for one path, the body decides: see `Claim`.
"""
