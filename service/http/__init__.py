"""The HTTP API: embeddings, long documents, diagnostics, benchmarks and the pages."""
