"""Sections of a text: `sections.py` finds them, a file for each format finds its headings."""
