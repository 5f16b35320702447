"""The LLN paper's figures, redrawn: a file computes each, `draw.py` draws and writes them."""
