"""One file for each suite: `measure(bench, plan)` yields its rows; the docstring describes it."""
