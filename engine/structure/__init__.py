"""The parts of a document, found where attention thins out."""
