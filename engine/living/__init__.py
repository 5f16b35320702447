"""Documents that stay open: read again only where they changed.

A document is read in segments (`engine/text/segments.py`). What LLN+Diag knows of a segment from
outside is one state a layer, so a record of these states and of the segment's vectors is enough to
read the other segments later as if this one were there.

- `parts.py` divides a text into segments and finds those that a record holds already; `prepare.py`
  makes of the others what the device reads.
- `segmented_run.py` reads the others on the device.
- `update.py` puts the answer and the new record together.
- `record.py` is what a caller keeps, as bytes; `fold.py` makes it small for a document that only
  grows.
- `rounds.py` reads until no kept segment is staler than the caller allows; `price.py` says before
  what that takes.
- `staleness.py` bounds what it costs that kept segments were read in an earlier document.
"""
