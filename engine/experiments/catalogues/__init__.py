"""The experiments by name, each in two budgets."""
