"""Text in, token ids and spans out."""

from engine.text.chunks import ChunkSpan, chunk_spans, plan_chunks
from engine.text.tokenizer import Encoded, TextTokenizer
from engine.text.truncation import Truncated, truncate

__all__ = [
    "ChunkSpan",
    "Encoded",
    "TextTokenizer",
    "Truncated",
    "chunk_spans",
    "plan_chunks",
    "truncate",
]
