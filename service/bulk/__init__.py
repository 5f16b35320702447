"""Embeds a corpus into files: rows in, vectors out, resumed where it was killed."""
