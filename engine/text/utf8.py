"""UTF-8 that comes in pieces cut anywhere, also inside a character."""

from __future__ import annotations

import codecs

from engine.errors import InvalidInput


class Utf8Reader:
    """Decodes pieces; what is not UTF-8 is an error that says at which byte of the whole."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._num_bytes = 0

    def read(self, piece: bytes) -> str:
        return self._decode(piece, final=False)

    def finish(self) -> None:
        """Raises if the last character is not complete."""
        self._decode(b"", final=True)

    def _decode(self, piece: bytes, *, final: bool) -> str:
        held, _ = self._decoder.getstate()
        try:
            text = self._decoder.decode(piece, final)
        except UnicodeDecodeError as error:
            position = self._num_bytes - len(held) + error.start
            raise InvalidInput(
                f"the text is not UTF-8: byte {error.object[error.start]:#04x} at {position}",
                code="invalid_utf8",
                param="text",
                actual=position,
            ) from None
        self._num_bytes += len(piece)
        return text
