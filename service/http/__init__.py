"""HTTP: OpenAI's embeddings contract, long documents, diagnostics, benchmarks and the rest."""
