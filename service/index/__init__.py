"""Search over a folder: documents read whole, late chunks and words in one SQLite file."""
