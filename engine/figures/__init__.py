"""The LLN paper's figures, redrawn from this code."""

from engine.figures.draw import draw_figures, find_figures

__all__ = ["draw_figures", "find_figures"]
