"""Checks that text is valid Unicode: strings without lone surrogates, bytes that are UTF-8."""

from __future__ import annotations

import codecs

from engine.errors import InvalidInput


def lone_surrogate(text: str) -> int | None:
    """The index of the first lone surrogate, which is half of a pair and no character.

    JSON can hold them and Python strings can too, but no encoding and no tokenizer takes them.
    """
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def check_unicode(text: str, name: str, *, param: str | None = None) -> None:
    """Rejects a text with a lone surrogate; the error calls the text `name`."""
    index = lone_surrogate(text)
    if index is not None:
        raise InvalidInput(
            f"{name} has a lone surrogate at character {index}",
            code="invalid_unicode",
            param=param,
            actual=f"U+{ord(text[index]):04X}",
        )


class Utf8Reader:
    """Decodes UTF-8 that arrives in pieces, which may split a character.

    An error states the position in the whole text, not in the piece.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._num_bytes = 0

    def read(self, piece: bytes) -> str:
        return self._decode(piece, final=False)

    def finish(self) -> None:
        """Raises if the last character is incomplete."""
        self._decode(b"", final=True)

    def _decode(self, piece: bytes, *, final: bool) -> str:
        pending, _ = self._decoder.getstate()
        try:
            text = self._decoder.decode(piece, final)
        except UnicodeDecodeError as error:
            position = self._num_bytes - len(pending) + error.start
            raise InvalidInput(
                f"the text is not UTF-8: byte {error.object[error.start]:#04x} at {position}",
                code="invalid_utf8",
                param="text",
                actual=position,
            ) from None
        self._num_bytes += len(piece)
        return text
