"""Model folders: where they come from, what is in them, and the calibrations of LLN+Diag."""
