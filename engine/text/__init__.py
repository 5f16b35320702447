"""From text to token ids: tokenizers, truncation, chunks, sentences and headings."""
