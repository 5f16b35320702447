"""Making an LLN+Diag model of a softmax checkpoint."""
