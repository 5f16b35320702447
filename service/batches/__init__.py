"""OpenAI's Batch API: files of requests, answered at the lowest priority, on disk."""
