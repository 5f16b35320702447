"""HTML as the text that people see, by resiliparse: blocks on lines of their own, lists and tables,
no scripts and no navigation."""

from __future__ import annotations

from service.readers.extra import need
from service.readers.extracted import Extracted, Unreadable

_NAVIGATION = ("nav", "[role=navigation]", "footer")


def read_html(content: bytes) -> Extracted:
    html = need("resiliparse.parse.html", "reading HTML")
    plain = need("resiliparse.extract.html2text", "reading HTML")
    tree = html.HTMLTree.parse(_decode(content))
    text = plain.extract_plain_text(tree, alt_texts=False, skip_elements=list(_NAVIGATION))
    return Extracted(text=text.replace("\0", "\ufffd"), title=tree.title)


def _decode(content: bytes) -> str:
    """UTF-8 if the content is that, or else what the page declares, or what it looks like."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass
    encodings = need("resiliparse.parse.encoding", "reading HTML")
    encoding = encodings.detect_encoding(content, from_html_meta=True)
    try:
        return content.decode(encoding)
    except (UnicodeDecodeError, LookupError) as error:
        raise Unreadable(
            f"it is neither in UTF-8 nor in {encoding}, which it seems to be in: {error}",
            code="not_utf8",
        ) from None
