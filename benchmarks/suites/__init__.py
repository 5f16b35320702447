"""One file a suite: `measure(bench, plan)` gives its rows."""
