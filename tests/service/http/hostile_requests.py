"""Requests over HTTP that are malformed, ambiguous or unusual, as the bytes of them."""

from __future__ import annotations

KEY = "a-key-of-the-settings-0123"
HEAD = b"GET /health/live HTTP/1.1\r\nHost: x\r\n"
GET = HEAD + b"\r\n"
LAST = HEAD + b"Connection: close\r\n\r\n"
BODY = b'{"input": "a text"}'
OFFER = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
)


def post(
    *headers: bytes, line: bytes = b"POST /v1/embeddings HTTP/1.1", body: bytes = b""
) -> bytes:
    """A request to embed, with these headers besides the usual ones."""
    usual = (b"Host: x", b"X-API-Key: " + KEY.encode(), b"Content-Type: application/json")
    return b"\r\n".join([line, *usual, *headers, b"", body])


def chunked(body: bytes) -> bytes:
    return post(b"Transfer-Encoding: chunked", body=body)


CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked"

LENGTHS = {
    "length and chunked": post(b"Content-Length: 5", CHUNKED, body=CHUNKS),
    "chunked and length": post(CHUNKED, b"Content-Length: 0", body=CHUNKS),
    "chunked and the same length": post(CHUNKED, b"Content-Length: %d" % len(CHUNKS), body=CHUNKS),
    "two lengths": post(LENGTH, b"Content-Length: 2", body=BODY),
    "the same length twice": post(LENGTH, LENGTH, body=BODY),
    "two lengths in one": post(LENGTH + b", 2", body=BODY),
    "length with a plus": post(b"Content-Length: +%d" % len(BODY), body=BODY),
    "negative length": post(b"Content-Length: -1", body=BODY),
    "negative zero": post(b"Content-Length: -0"),
    "length in hexadecimal": post(b"Content-Length: 0x13", body=BODY),
    "length in octal": post(b"Content-Length: 0o23", body=BODY),
    "length with an underscore": post(b"Content-Length: 1_9", body=BODY),
    "length with a space": post(b"Content-Length: 1 9", body=BODY),
    "length with a fraction": post(b"Content-Length: 19.0", body=BODY),
    "length in other digits": post("Content-Length: ¹⁹".encode(), body=BODY),
    "length with a letter": post(b"Content-Length: 19a", body=BODY),
    "length of 21 digits": post(b"Content-Length: " + b"9" * 21, body=BODY),
    "empty length": post(b"Content-Length:", body=BODY),
    "length before a space": post(b"Content-Length : 19", body=BODY),
    "length in a folded line": post(b"Content-Length:\r\n 19", body=BODY),
    "unknown coding": post(b"Transfer-Encoding: xchunked", body=CHUNKS),
    "identity": post(b"Transfer-Encoding: identity", body=CHUNKS),
    "chunked is not last": post(b"Transfer-Encoding: chunked, gzip", body=CHUNKS),
    "another coding before": post(b"Transfer-Encoding: gzip, chunked", body=CHUNKS),
    "chunked twice": post(b"Transfer-Encoding: chunked, chunked", body=CHUNKS),
    "chunked twice in two headers": post(CHUNKED, CHUNKED, body=CHUNKS),
    "chunked and another header": post(CHUNKED, b"Transfer-Encoding: x", body=CHUNKS),
    "chunked with a parameter": post(CHUNKED + b";a=b", body=CHUNKS),
    "chunked in quotes": post(b'Transfer-Encoding: "chunked"', body=CHUNKS),
    "chunked after a vertical tab": post(b"Transfer-Encoding: \x0bchunked", body=CHUNKS),
    "chunked before NUL": post(CHUNKED + b"\0", body=CHUNKS),
    "chunked in a folded line": post(b"Transfer-Encoding:\r\n chunked", body=CHUNKS),
    "chunked before a space": post(b"Transfer-Encoding : chunked", body=CHUNKS),
    "empty coding": post(b"Transfer-Encoding:", body=CHUNKS),
    "chunked after a comma": post(b"Transfer-Encoding: , chunked", body=CHUNKS),
    "chunked in HTTP/1.0": post(CHUNKED, line=b"POST /v1/embeddings HTTP/1.0", body=CHUNKS),
}

BROKEN_CHUNKS = {
    "no number": b"zz\r\nhello\r\n0\r\n\r\n",
    "no size": b"\r\nhello\r\n0\r\n\r\n",
    "minus": b"-5\r\nhello\r\n0\r\n\r\n",
    "plus": b"+5\r\nhello\r\n0\r\n\r\n",
    "prefix": b"0x5\r\nhello\r\n0\r\n\r\n",
    "underscore": b"0_5\r\nhello\r\n0\r\n\r\n",
    "space before the size": b" 5\r\nhello\r\n0\r\n\r\n",
    "more than 64 bits": b"1" + b"0" * 20 + b"\r\nhello\r\n0\r\n\r\n",
    "comma": b"5,6\r\nhello\r\n0\r\n\r\n",
    "line feed alone after the size": b"5\nhello\r\n0\r\n\r\n",
    "carriage return alone after the size": b"5\rhello\r\n0\r\n\r\n",
    "line feed in an extension": b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    "data that goes on": b"5\r\nhello!!\r\n0\r\n\r\n",
    "data without an end": b"5\r\nhello0\r\n\r\n",
    "line feed alone after the data": b"5\r\nhello\n0\r\n\r\n",
    "trailer with a length": b"5\r\nhello\r\n0\r\nContent-Length: 99\r\n\r\n",
    "trailer with a coding": b"5\r\nhello\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "trailer that is no header": b"5\r\nhello\r\n0\r\nnot a header\r\n\r\n",
}

BROKEN_HEADS = {
    "line feed after the request line": b"GET /health/live HTTP/1.1\nHost: x\r\n\r\n",
    "line feed after a header": b"GET /health/live HTTP/1.1\r\nHost: x\n\r\n",
    "line feeds alone": b"GET /health/live HTTP/1.1\nHost: x\n\n",
    "carriage returns alone": b"GET /health/live HTTP/1.1\rHost: x\r\r\r\n\r\n",
    "carriage return in a value": HEAD + b"A: b\rC: d\r\n\r\n",
    "header that goes on in the next line": HEAD + b"A: b\r\n c\r\n\r\n",
    "header that goes on after a tab": HEAD + b"A: b\r\n\tc\r\n\r\n",
    "space before the first header": b"GET /health/live HTTP/1.1\r\n Host: x\r\n\r\n",
    "no colon": HEAD + b"A\r\n\r\n",
    "no name": HEAD + b": b\r\n\r\n",
    "space before the colon": HEAD + b"A : b\r\n\r\n",
    "NUL in a name": HEAD + b"A\0b: c\r\n\r\n",
    "NUL in a value": HEAD + b"A: b\0c\r\n\r\n",
    "brackets in a name": HEAD + b"A[b]: c\r\n\r\n",
    "name in other letters": HEAD + "Ä: b\r\n\r\n".encode(),
    "no host": b"GET /health/live HTTP/1.1\r\n\r\n",
    "empty host": b"GET /health/live HTTP/1.1\r\nHost:\r\n\r\n",
    "two hosts": HEAD + b"Host: y\r\n\r\n",
    "the same host twice": HEAD + b"Host: x\r\n\r\n",
    "two hosts in one": b"GET /health/live HTTP/1.1\r\nHost: x, y\r\n\r\n",
    "host with a user": b"GET /health/live HTTP/1.1\r\nHost: user@x\r\n\r\n",
    "host with a path": b"GET /health/live HTTP/1.1\r\nHost: x/docs\r\n\r\n",
    "host with a port that is none": b"GET /health/live HTTP/1.1\r\nHost: x:http\r\n\r\n",
    "HTTP/0.9": b"GET /health/live\r\n\r\n",
    "HTTP/1.2": b"GET /health/live HTTP/1.2\r\nHost: x\r\n\r\n",
    "HTTP/2.0": b"GET /health/live HTTP/2.0\r\nHost: x\r\n\r\n",
    "the beginning of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/9.9": b"GET /health/live HTTP/9.9\r\nHost: x\r\n\r\n",
    "HTTP/01.1": b"GET /health/live HTTP/01.1\r\nHost: x\r\n\r\n",
    "HTTP/1": b"GET /health/live HTTP/1\r\nHost: x\r\n\r\n",
    "http/1.1": b"GET /health/live http/1.1\r\nHost: x\r\n\r\n",
    "two spaces": b"GET  /health/live HTTP/1.1\r\nHost: x\r\n\r\n",
    "tabs": b"GET\t/health/live\tHTTP/1.1\r\nHost: x\r\n\r\n",
    "space in the target": b"GET /health live HTTP/1.1\r\nHost: x\r\n\r\n",
    "space at the end of the line": b"GET /health/live HTTP/1.1 \r\nHost: x\r\n\r\n",
    "no target": b"GET  HTTP/1.1\r\nHost: x\r\n\r\n",
    "NUL in the target": b"GET /health/live\0 HTTP/1.1\r\nHost: x\r\n\r\n",
    "other letters in the target": "GET /é HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
    "fragment in the target": b"GET /health/live#a HTTP/1.1\r\nHost: x\r\n\r\n",
    "star for a GET": b"GET * HTTP/1.1\r\nHost: x\r\n\r\n",
    "target that is no path": b"GET health/live HTTP/1.1\r\nHost: x\r\n\r\n",
    "target of another scheme": b"GET ftp://x/health/live HTTP/1.1\r\nHost: x\r\n\r\n",
    "target with a user": b"GET http://user@x/health/live HTTP/1.1\r\nHost: x\r\n\r\n",
    "target without a host": b"GET http:///health/live HTTP/1.1\r\nHost: x\r\n\r\n",
    "method with a slash": b"GE/T /health/live HTTP/1.1\r\nHost: x\r\n\r\n",
    "two empty lines first": b"\r\n\r\n" + GET,
    "space first": b" " + GET,
    "noise": bytes(range(256)) + b"\r\n\r\n",
    "a greeting of TLS": bytes.fromhex("16030100c6010000c20303") + bytes(190) + b"\r\n\r\n",
}

WELL_FORMED = {
    "length": post(LENGTH, body=BODY),
    "length with zeros": post(b"Content-Length: 0019", body=BODY),
    "length between spaces": post(b"Content-Length:  \t19 \t", body=BODY),
    "chunks": chunked(CHUNKS),
    "Chunked": post(b"tRANSFER-eNCODING: Chunked", body=CHUNKS),
    "chunks with extensions": chunked(b'13;a=b;c="d e"\r\n' + BODY + b"\r\n0;f\r\n\r\n"),
    "chunks with zeros": chunked(b"0" * 20 + b"13\r\n" + BODY + b"\r\n000\r\n\r\n"),
    "a trailer": chunked(b"13\r\n" + BODY + b"\r\n0\r\nA: b\r\n\r\n"),
    "a name like another": post(LENGTH, b"Transfer_Encoding: chunked", body=BODY),
    "an offer of WebSocket": post(
        LENGTH,
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        body=BODY,
    ),
    "a target with its host": post(
        LENGTH, line=b"POST http://x:80/v1/embeddings?a=b HTTP/1.1", body=BODY
    ),
}

REFUSED_BODIES = {
    "no key": post(LENGTH, body=BODY).replace(KEY.encode(), b"no-key-of-this-server"),
    "no such route": post(LENGTH, line=b"POST /nowhere HTTP/1.1", body=BODY),
    "no such verb": post(LENGTH, line=b"DELETE /v1/models HTTP/1.1", body=BODY),
    "a GET with a body": post(LENGTH, line=b"GET /v1/models HTTP/1.1", body=BODY),
    "not JSON": post(b"Content-Length: %d" % len(GET), body=GET),
    "encoded": post(b"Content-Length: %d" % len(GET), b"Content-Encoding: br", body=GET),
}
