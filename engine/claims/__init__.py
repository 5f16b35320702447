"""What papers claim of attention: each numbered claim, checked by a computation on this machine.

To add a claim, write a function that measures it and list both in the CLAIMS of the paper's file,
or of one of its files. `check.py` runs the claims, `page.py` writes docs/claims.md, and
`figures/` redraws the paper's figures.
"""
