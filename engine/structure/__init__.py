"""The parts of a document, found where its subject changes."""
