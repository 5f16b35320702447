"""PDF as text with page starts, by PDFium."""

from __future__ import annotations

import re
from itertools import accumulate
from threading import Lock
from typing import Any

from service.readers.extra import need
from service.readers.extracted import Extracted, Unreadable

_HYPHEN = re.compile("[\x02\ufffe]")
_BETWEEN_PAGES = "\n\n"

_lock = Lock()  # PDFium runs in one thread at a time


def read_pdf(content: bytes) -> Extracted:
    pdfium = need("pypdfium2", "reading PDF")
    with _lock:
        try:
            document = pdfium.PdfDocument(content)
        except pdfium.PdfiumError as error:
            raise Unreadable(f"it is not a PDF that can be read: {error}", code="bad_pdf") from None
        try:
            pages = [_text(document[number]) for number in range(len(document))]
            title = _title(document)
        except pdfium.PdfiumError as error:
            raise Unreadable(f"a page of it cannot be read: {error}", code="bad_pdf") from None
        finally:
            document.close()
    lengths = [len(page) + len(_BETWEEN_PAGES) for page in pages]
    starts = tuple(accumulate(lengths[:-1], initial=0)) if pages else ()
    text = _BETWEEN_PAGES.join(pages)
    if not text.strip():
        raise Unreadable("it has no text, only pictures of it perhaps", code="no_text")
    return Extracted(text=text, title=title, page_starts=starts)


def _title(document: Any) -> str | None:
    try:
        title: str = document.get_metadata_value("Title")
    except UnicodeDecodeError:  # its text is none the worse for it
        return None
    return title


def _text(page: Any) -> str:
    textpage = page.get_textpage()
    try:
        text: str = textpage.get_text_bounded()
    finally:
        textpage.close()
        page.close()
    # PDFium marks a word that is hyphenated at the end of a line, and ends lines as Windows does.
    text = _HYPHEN.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    text = text.replace("\0", "\ufffd")
    # Characters without a counterpart in Unicode may be read as halves of surrogate pairs.
    return text.encode("utf-8", "replace").decode("utf-8")
